"""Native CPU kernels: a C++ extension that is compiled when octavo is installed, and the door's functions over it."""
