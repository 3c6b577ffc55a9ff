// What Python sees. Tensors come as addresses, shapes and strides in elements; the Python side has checked them.
#include <pybind11/pybind11.h>

#include "attention.hpp"
#include "elementwise.hpp"
#include "gemm.hpp"
#include "isa.hpp"

namespace py = pybind11;

namespace {

using octavo::Type;
using Address = uintptr_t;

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

octavo::Cache make_cache(Address keys, Address values, int type, int layout, int kv_heads, int head_dim, int key_dim,
                         int value_dim, int block_size) {
    return {at<void>(keys), at<void>(values), static_cast<Type>(type), static_cast<octavo::Layout>(layout), kv_heads,
            head_dim,       key_dim,          value_dim,               block_size};
}

void rms_norm(Address x, Address residual, Address weight, Address out, int type, int64_t rows, int64_t size,
              int64_t x_stride, int64_t residual_stride, int64_t out_stride, float epsilon) {
    OCTAVO_PICK(rms_norm)
    ({at<void>(x), at<void>(residual), at<void>(weight), at<void>(out), static_cast<Type>(type), rows, size, x_stride,
      residual_stride, out_stride, epsilon});
}

void gate(Address x, Address out, int type, int activation, int64_t rows, int64_t size, int64_t x_stride,
          int64_t out_stride) {
    OCTAVO_PICK(gate)
    ({at<void>(x), at<void>(out), static_cast<Type>(type), static_cast<octavo::Activation>(activation), rows, size,
      x_stride, out_stride});
}

void argmax(Address x, Address columns, Address peaks, int64_t rows, int64_t size, int64_t x_stride) {
    OCTAVO_PICK(argmax)({at<float>(x), at<int64_t>(columns), at<float>(peaks), rows, size, x_stride});
}

void rotary_and_write(const octavo::Cache& cache, Address query, Address key, Address value, int type, int64_t tokens,
                      int64_t query_stride, int64_t key_stride, int64_t value_stride, int heads, Address positions,
                      Address cos_sin, int rotary_dim, bool interleaved, Address slots) {
    OCTAVO_PICK(rotary_and_write)
    ({at<void>(query), at<void>(key), at<void>(value), static_cast<Type>(type), tokens, query_stride, key_stride,
      value_stride, heads, at<int64_t>(positions), at<float>(cos_sin), rotary_dim, interleaved, at<int64_t>(slots)},
     cache);
}

void paged_attention(const octavo::Cache& cache, Address query, Address out, int type, int64_t query_stride,
                     int64_t out_stride, Address query_start, Address seq_lens, Address block_table,
                     int64_t table_stride, int sequences, int heads, float scale, int window, float soft_cap,
                     Address alibi_slopes) {
    octavo::paged_attention({at<void>(query), at<void>(out), static_cast<Type>(type), query_stride, out_stride, cache,
                             at<int32_t>(query_start), at<int32_t>(seq_lens), at<int32_t>(block_table), table_stride,
                             sequences, heads, scale, window, soft_cap, at<float>(alibi_slopes)});
}

octavo::PackedWeight packed(Address data, int64_t outputs, int64_t inputs) {
    return {at<octavo::bf16>(data), outputs, inputs};
}

void pack_weight(Address data, int64_t outputs, int64_t inputs, Address weight, int64_t row_stride, bool gated) {
    octavo::pack_weight(packed(data, outputs, inputs), at<octavo::bf16>(weight), row_stride, gated);
}

void unpack_rows(Address data, int64_t outputs, int64_t inputs, Address ids, int64_t count, Address out) {
    octavo::unpack_rows(packed(data, outputs, inputs), at<int64_t>(ids), count, at<octavo::bf16>(out));
}

#if defined(OCTAVO_WITH_AMX)
void multiply(Address data, int64_t outputs, int64_t inputs, Address x, int64_t x_stride, int64_t rows, Address out,
              int64_t out_stride, Address bias, int epilogue) {
    octavo::multiply_amx(packed(data, outputs, inputs),
                         {at<octavo::bf16>(x), x_stride, rows, at<void>(out), out_stride, at<octavo::bf16>(bias),
                          static_cast<octavo::Epilogue>(epilogue)});
}
#endif

}  // namespace

PYBIND11_MODULE(_native, m) {
    m.doc() = "octavo's CPU kernels over raw pointers; see octavo_kernels.cpu for their safe form.";
    m.def("best_isa", [] { return static_cast<int>(octavo::best_isa()); });
    m.def("active_isa", [] { return static_cast<int>(octavo::active_isa()); });
    m.def("set_active_isa", [](int isa) { octavo::set_active_isa(static_cast<octavo::Isa>(isa)); });
    m.def("has_vnni", &octavo::has_vnni);

    py::class_<octavo::Cache>(m, "Cache").def(py::init(&make_cache));
    m.def("rms_norm", &rms_norm);
    m.def("gate", &gate);
    m.def("argmax", &argmax);
    m.def("rotary_and_write", &rotary_and_write);
    m.def("paged_attention", &paged_attention, py::call_guard<py::gil_scoped_release>());
    m.def("packed_size", &octavo::packed_size);
    m.def("pack_weight", &pack_weight, py::call_guard<py::gil_scoped_release>());
    m.def("unpack_rows", &unpack_rows, py::call_guard<py::gil_scoped_release>());
#if defined(OCTAVO_WITH_AMX)
    m.def("multiply", &multiply, py::call_guard<py::gil_scoped_release>());
#endif
}
