"""The native CPU kernels: a C++ extension that is compiled when octavo is installed."""
