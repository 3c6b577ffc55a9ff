"""Native CPU kernels: a C++ extension that is compiled when octavo is installed, and the functions of the door over it."""
