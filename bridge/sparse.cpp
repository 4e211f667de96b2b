// Sparse tensors (COO) of the device, as gradients of embeddings are: indices and values are ordinary tensors of the device,
// PyTorch's own kernels keep them together, and what computes is composed of ordinary operators here.
#include <ATen/core/ATen_fwd.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_dense_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include "bridge/bridge.h"

namespace tpu {
namespace {

std::optional<c10::Device> device_in(const at::Tensor &t) { return t.device(); }
std::optional<c10::Device> device_in(std::optional<c10::Device> device) { return device; }
template <class T>
std::optional<c10::Device> device_in(const T &) {
  return std::nullopt;
}

// PyTorch's kernels make sparse tensors on the current device, and leave it to their wrappers to change that.
template <auto kernel>
struct OnItsDevice;
template <class R, class... A, R (*kernel)(A...)>
struct OnItsDevice<kernel> {
  static R call(A... args) {
    std::optional<c10::Device> device;
    ((device = device ? device : device_in(args)), ...);
    const c10::OptionalDeviceGuard guard(device);
    return kernel(std::forward<A>(args)...);
  }
};

at::Tensor with(const at::Tensor &like, const at::Tensor &indices, const at::Tensor &values, bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes(), values.options().layout(at::kSparse), coalesced);
}

// [sparse_dim, nnz] -> [nnz]: where each entry is in the first sparse_dim dims, row-major.
at::Tensor flat_indices(const at::Tensor &sparse) {
  const at::Tensor indices = sparse._indices();
  const int64_t n = sparse.sparse_dim();
  if (n == 0) return at::zeros({indices.size(1)}, indices.options());
  at::Tensor flat = indices.select(0, 0);
  for (int64_t i = 1; i < n; i++) flat = flat.mul(sparse.size(i)).add(indices.select(0, i));
  return flat;
}

// The first sparse_dim dims of a dense tensor of the same sizes as one.
at::Tensor rows_of(const at::Tensor &dense, const at::Tensor &sparse) {
  const int64_t n = sparse.sparse_dim();
  return n == 0 ? dense.unsqueeze(0) : dense.flatten(0, n - 1);
}

at::Tensor coalesce(const at::Tensor &self) {
  if (self.is_coalesced()) return self;
  const int64_t nnz = self._nnz();
  if (nnz < 2) return with(self, self._indices().clone(), self._values().clone(), true);
  const auto [sorted, order] = at::sort(flat_indices(self), std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
  // Equal entries are neighbours now; `group` numbers them from 0.
  at::Tensor group = at::zeros_like(sorted);
  group.slice(0, 1).copy_(sorted.slice(0, 1).ne(sorted.slice(0, 0, nnz - 1)).cumsum(0));
  const int64_t groups = group.select(0, nnz - 1).item<int64_t>() + 1;
  const at::Tensor values = self._values().index_select(0, order);
  auto sizes = values.sizes().vec();
  sizes[0] = groups;
  const at::Tensor sums = at::zeros(sizes, values.options()).index_add_(0, group, values);
  at::Tensor indices = at::zeros({self.sparse_dim(), groups}, self._indices().options());
  indices.index_copy_(1, group, self._indices().index_select(1, order));
  return with(self, indices, sums, true);
}

at::Tensor &add_to_dense(at::Tensor &self, const at::Tensor &sparse, const at::Scalar &alpha) {
  TORCH_CHECK(self.sizes() == sparse.sizes(), "add: expected 'self' and 'other' to have the same size, but self has size ",
              self.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  TORCH_CHECK(at::canCast(at::result_type(self, sparse), self.scalar_type()), "result type ", at::result_type(self, sparse),
              " can't be cast to the desired output type ", self.scalar_type());
  if (sparse._nnz() == 0) return self;
  const at::Tensor values = sparse._values().to(self.scalar_type());
  if (self.is_contiguous()) {
    rows_of(self, sparse).index_add_(0, flat_indices(sparse), values, alpha);
  } else {
    const at::Tensor sum = self.contiguous();
    rows_of(sum, sparse).index_add_(0, flat_indices(sparse), values, alpha);
    self.copy_(sum);
  }
  return self;
}

at::Tensor add(const at::Tensor &self, const at::Tensor &other, const at::Scalar &alpha) {
  if (!self.is_sparse()) {
    at::Tensor sum = self.to(at::result_type(self, other), /*non_blocking=*/false, /*copy=*/true);
    return add_to_dense(sum, other, alpha);
  }
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
              "add: expected 'self' and 'other' to have same density, but got ", self.sparse_dim(), " and ", other.sparse_dim(),
              " sparse dimensions");
  const auto type = at::result_type(self, other);
  const at::Tensor indices = at::cat({self._indices(), other._indices()}, 1);
  return with(self, indices, at::cat({self._values().to(type), other._values().to(type).mul(alpha)}), false);
}

at::Tensor &add_(at::Tensor &self, const at::Tensor &other, const at::Scalar &alpha) {
  if (!self.is_sparse()) return add_to_dense(self, other, alpha);
  return self.copy_(add(self, other, alpha).to(self.scalar_type()));
}

at::Tensor &add_out(const at::Tensor &self, const at::Tensor &other, const at::Scalar &alpha, at::Tensor &out) {
  return out.copy_(add(self, other, alpha));
}
at::Tensor sub(const at::Tensor &self, const at::Tensor &other, const at::Scalar &alpha) { return add(self, other, -alpha); }
at::Tensor &sub_(at::Tensor &self, const at::Tensor &other, const at::Scalar &alpha) { return add_(self, other, -alpha); }

// The entries of `dense` at the places of `sparse`.
at::Tensor entries_at(const at::Tensor &dense, const at::Tensor &sparse) {
  return rows_of(dense, sparse).index_select(0, flat_indices(sparse));
}

at::Tensor sparse_mask(const at::Tensor &self, const at::Tensor &mask) {
  TORCH_CHECK(self.sizes() == mask.sizes(), "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  const at::Tensor dense = self.is_sparse() ? self.to_dense() : self;
  return with(mask, mask._indices().clone(), entries_at(dense, mask), mask.is_coalesced());
}

at::Tensor mul(const at::Tensor &self, const at::Tensor &other) {
  const bool left = self.is_sparse();
  const at::Tensor &sparse = left ? self : other, &factor = left ? other : self;
  if (factor.dim() == 0 && !factor.is_sparse())
    return with(sparse, sparse._indices().clone(), sparse._values().mul(factor), sparse.is_coalesced());
  TORCH_CHECK(self.sizes() == other.sizes(), "mul: expected 'self' and 'other' to have same sizes, but ", self.sizes(),
              " != ", other.sizes());
  const at::Tensor dense = factor.is_sparse() ? factor.to_dense() : factor;
  return with(sparse, sparse._indices().clone(), sparse._values().mul(entries_at(dense, sparse)), sparse.is_coalesced());
}
at::Tensor &mul_(at::Tensor &self, const at::Tensor &other) {
  TORCH_CHECK(self.is_sparse(), "mul_(dense, sparse) is not supported: the result is sparse");
  if (other.dim() == 0 && !other.is_sparse()) {
    self._values().mul_(other);
    return self;
  }
  return self.copy_(mul(self, other));
}

at::Tensor &mul_out(const at::Tensor &self, const at::Tensor &other, at::Tensor &out) { return out.copy_(mul(self, other)); }

at::Tensor div(const at::Tensor &self, const at::Tensor &other) {
  TORCH_CHECK(self.is_sparse() && other.dim() == 0 && !other.is_sparse(),
              "Sparse division requires a scalar or zero-dim dense tensor divisor (got shape ", other.sizes(), " for divisor)");
  return with(self, self._indices().clone(), self._values().div(other), self.is_coalesced());
}
at::Tensor &div_(at::Tensor &self, const at::Tensor &other) { return self.copy_(div(self, other)); }

// A sparse matrix [M, K] times a dense one [K, N].
at::Tensor mm(const at::Tensor &self, const at::Tensor &other) {
  TORCH_CHECK(self.is_sparse() && !other.is_sparse(),
              "mm of a dense and a sparse matrix, or of two sparse ones, is not supported");
  TORCH_CHECK(self.dim() == 2 && self.sparse_dim() == 2 && other.dim() == 2, "mm: expected matrices, got ", self.dim(), "-d and ",
              other.dim(), "-d");
  TORCH_CHECK(self.size(1) == other.size(0), "mat1 and mat2 shapes cannot be multiplied (", self.size(0), "x", self.size(1),
              " and ", other.size(0), "x", other.size(1), ")");
  const at::Tensor indices = self._indices();
  const at::Tensor terms = other.index_select(0, indices.select(0, 1)).mul(self._values().unsqueeze(1));
  return at::zeros({self.size(0), other.size(1)}, other.options()).index_add_(0, indices.select(0, 0), terms);
}
at::Tensor addmm(const at::Tensor &self, const at::Tensor &mat1, const at::Tensor &mat2, const at::Scalar &beta,
                 const at::Scalar &alpha) {
  const at::Tensor product = mm(mat1, mat2).mul(alpha);
  return beta.equal(0) ? product : product.add(self, beta);
}

at::Tensor neg(const at::Tensor &self) { return with(self, self._indices().clone(), self._values().neg(), self.is_coalesced()); }

template <at::Tensor (at::Tensor::*method)() const>
at::Tensor by_entry(const at::Tensor &self) {  // of operations that give 0 for 0
  const at::Tensor one = self.coalesce();
  return with(one, one._indices().clone(), (one._values().*method)(), true);
}

at::Tensor sum(const at::Tensor &self, std::optional<at::ScalarType> dtype) { return self._values().sum(dtype); }

at::Tensor norm(const at::Tensor &self, const at::Scalar &p) { return self.coalesce()._values().norm(p); }
at::Tensor norm_dims(const at::Tensor &self, const std::optional<at::Scalar> &p, at::IntArrayRef dim, bool keepdim) {
  TORCH_CHECK(dim.empty() || static_cast<int64_t>(dim.size()) == self.dim(),
              "norm_sparse currently only supports full reductions");
  TORCH_CHECK(!keepdim, "norm_sparse currently does not support keepdim=True");
  return norm(self, p.value_or(2));
}

using ToSparse = at::Tensor(const at::Tensor &, std::optional<at::Layout>, at::OptionalIntArrayRef, std::optional<int64_t>);
using ToSparseDim = at::Tensor(const at::Tensor &, int64_t);

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(OnItsDevice<&at::native::new_with_dims_sparse>::call));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(OnItsDevice<&at::native::new_with_dims_and_tensor_sparse_symint>::call));
  m.impl("empty.memory_format", TORCH_FN(OnItsDevice<&at::native::empty_sparse_symint>::call));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("clone", TORCH_FN(OnItsDevice<&at::native::clone_sparse>::call));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("zero_", TORCH_FN(at::native::zero_sparse_));
  m.impl("_to_dense", TORCH_FN(at::native::sparse_to_dense));
  m.impl("_coalesce", TORCH_FN(coalesce));
  m.impl("add.Tensor", TORCH_FN(add));
  m.impl("add_.Tensor", TORCH_FN(add_));
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("sub.Tensor", TORCH_FN(sub));
  m.impl("sub_.Tensor", TORCH_FN(sub_));
  m.impl("mul.Tensor", TORCH_FN(mul));
  m.impl("mul_.Tensor", TORCH_FN(mul_));
  m.impl("mul.out", TORCH_FN(mul_out));
  m.impl("mm", TORCH_FN(mm));
  m.impl("addmm", TORCH_FN(addmm));
  m.impl("div.Tensor", TORCH_FN(div));
  m.impl("div_.Tensor", TORCH_FN(div_));
  m.impl("neg", TORCH_FN(neg));
  m.impl("abs", TORCH_FN(by_entry<&at::Tensor::abs>));
  m.impl("sqrt", TORCH_FN(by_entry<&at::Tensor::sqrt>));
  m.impl("sum", TORCH_FN(sum));
  m.impl("norm.Scalar", TORCH_FN(norm));
  m.impl("norm.ScalarOpt_dim", TORCH_FN(norm_dims));
  m.impl("sparse_mask", TORCH_FN(sparse_mask));
  m.impl("_to_sparse", static_cast<ToSparse *>(&at::native::sparse_coo_to_sparse));
  m.impl("_to_sparse.sparse_dim", static_cast<ToSparseDim *>(&at::native::sparse_coo_to_sparse));
}

void register_sparse_kernels(torch::Library &aten) {
  // Chooses between a dense gradient, which is a row, and a sparse one.
  aten.impl("_embedding_bag_backward", TORCH_FN(at::native::_embedding_bag_backward_symint));
  aten.impl("sparse_mask", TORCH_FN(sparse_mask));
  aten.impl("_to_sparse", static_cast<ToSparse *>(&at::native::dense_to_sparse));
  aten.impl("_to_sparse.sparse_dim", static_cast<ToSparseDim *>(&at::native::dense_to_sparse));
}

}  // namespace tpu
