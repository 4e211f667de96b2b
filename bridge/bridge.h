// What the bridge's files share. The bridge carries calls between PyTorch and core/rt; it knows no operator.
//
//   call.h        how the arguments of one call are read
//   kernel.cpp    boxed kernels for the rows of the op table, and for the in-place and out= forms derived from them
//   policy.cpp    operators without a kernel; nested tensors; mixed precision
//   tensor.cpp    kernels that are about storages, views and copies
//   sparse.cpp    sparse tensors
//   device.cpp    hooks, guard, events, generators, allocators, lanes
//   module.c      the Python module torch_tpu._C
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include <string>

extern "C" {
#include "bridge/bridge_c.h"
#include "rt/runtime.h"
}

namespace tpu {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

// Throws the C++ exception of the status' class (and releases it).
[[noreturn]] void raise(tpu_status status);
inline void check(tpu_status status) {
  if (C10_UNLIKELY(status != nullptr)) raise(status);
}

// This thread's lane, or the one of the thread whose backward pass runs here.
tpu_lane *lane();
// The same, knowing the source line of what it is going to record. Hold no lock.
tpu_lane *recording_lane();

// --- devices
int current_device();
// Index of a device argument (-1 or none: the current one); RuntimeError if there is no such device.
int device_index(std::optional<c10::Device> device);
c10::Allocator *allocator();
void release_storage(void *storage);  // the deleter that marks a DataPtr as ours
void resize_storage(c10::StorageImpl *storage, int64_t nbytes);

// --- dtypes
extern const uint8_t *const dtype_of_scalar_type;  // tpu_dtype by c10::ScalarType, NONE where there is none
[[noreturn]] void unsupported_dtype(c10::ScalarType type);
inline tpu_dtype dtype_of(c10::ScalarType type) {
  auto t = static_cast<tpu_dtype>(dtype_of_scalar_type[static_cast<uint8_t>(type)]);
  if (C10_UNLIKELY(t == TPU_DTYPE_NONE)) unsupported_dtype(type);
  return t;
}
inline c10::ScalarType scalar_type_of(tpu_dtype t) { return static_cast<c10::ScalarType>(tpu_dtype_torch(t)); }

// --- tensors
inline bool is_ours(const c10::TensorImpl *t) { return t->device_type() == kDevice; }
[[noreturn]] void foreign_storage();
inline tpu_storage *storage_of(const c10::TensorImpl *t) {
  const c10::Storage &s = t->storage();
  if (C10_UNLIKELY(!s)) foreign_storage();
  const c10::DataPtr &p = s.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(p.get_deleter() != &release_storage)) foreign_storage();
  return static_cast<tpu_storage *>(p.get_context());
}
// Borrows t's sizes and strides.
inline tpu_tensor view_of(const c10::TensorImpl *t) {
  auto sizes = t->sizes();
  return tpu_tensor{
      storage_of(t),      dtype_of(t->dtype().toScalarType()), static_cast<int>(sizes.size()), sizes.data(), t->strides().data(),
      t->storage_offset()};
}
inline tpu_tensor view_of(const at::Tensor &t) { return view_of(t.unsafeGetTensorImpl()); }
// A tensor over a storage that it takes.
at::Tensor wrap(tpu_storage *storage, tpu_dtype dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);
at::Tensor make_empty(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, int device);
// What t reads as, without lazy conjugation or negation.
at::Tensor resolve(const at::Tensor &t);
void copy_tensor(const at::Tensor &dst, const at::Tensor &src, bool non_blocking);

// --- random numbers
const at::Generator &default_generator(int device);
at::Generator new_generator(int device);
struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(int device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl &state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  GeneratorImpl *clone_impl() const override;
  tpu_generator state;
};

// Each fills in one part of PyTorch's registries.
void register_device();
void register_tensor_kernels(torch::Library &aten);
void register_row_kernels(torch::Library &aten);
void register_sparse_kernels(torch::Library &aten);

}  // namespace tpu
