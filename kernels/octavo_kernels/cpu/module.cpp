// What Python sees. Tensors come as addresses, shapes and strides in elements; the Python side has checked them.
#include <pybind11/pybind11.h>

#include "isa.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_native, m) {
    m.doc() = "octavo's CPU kernels over raw pointers; see octavo_kernels.cpu for their safe form.";
    m.def("best_isa", [] { return static_cast<int>(octavo::best_isa()); });
    m.def("active_isa", [] { return static_cast<int>(octavo::active_isa()); });
    m.def("set_active_isa", [](int isa) { octavo::set_active_isa(static_cast<octavo::Isa>(isa)); });
    m.def("has_vnni", &octavo::has_vnni);
}
