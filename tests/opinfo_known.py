"""What test_opinfo.py knows of operators that differ from PyTorch's CPU kernels."""

_TIES = "which of equal values comes first is not defined"
_STATISTICS = "statistics of bfloat16 are float32, as on CUDA"
_SIZES = "statistics that nothing asked for have CUDA's size, not the CPU's 0"

# (operator, form): why it fails.
KNOWN = {
    ("_batch_norm_with_update", "bfloat16"): _STATISTICS,
    ("_native_batch_norm_legit", "bfloat16"): _STATISTICS,
    ("_native_batch_norm_legit", "float32"): _SIZES,
    ("argsort", "bfloat16"): _TIES,
    ("argsort", "bool"): _TIES,
    ("chalf", "grad"): "no ComplexHalf on a device",
    ("kthvalue", "int64"): _TIES,
    ("linalg.lstsq", "float32"): "runs on the CPU, and comes back row-major",
    ("linalg.lstsq.grad_oriented", "float32"): "runs on the CPU, and comes back row-major",
    ("native_batch_norm", "bfloat16"): _STATISTICS,
    ("native_batch_norm", "float32"): _SIZES,
    ("native_layer_norm", "bfloat16"): _STATISTICS,
    ("sort", "bfloat16"): _TIES,
    ("sort", "bool"): _TIES,
    ("topk", "int64"): _TIES,
}

# (operator, form): (relative, absolute) tolerance. The CPU rounds bfloat16 after each of many additions; in sums of
# values near 10000 single precision says little.
LOOSE = {
    ("_unsafe_masked_index_put_accumulate", "bfloat16"): (1e-1, 1e-1),
    ("addbmm", "bfloat16"): (1e-1, 3e-1),
    ("grid_sampler_2d", "bfloat16"): (1e-1, 2e-1),
    ("logcumsumexp", "grad"): (1e-2, 1e-2),
    ("nn.functional.grid_sample", "bfloat16"): (1e-1, 1e-1),
}

# operator: why it is not tried.
SKIPPED = {
    "to_sparse": "no sparse tensors on a device",
}

# Overloads that run on the CPU: no row, no composite, no decomposition.
FALLBACKS = set(
    """
    _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _linalg_eigvals _linalg_svd.U
    _unique2 bincount cholesky cholesky.out conj_physical.out fractional_max_pool2d.output
    fractional_max_pool2d_backward.grad_input fractional_max_pool3d.output fractional_max_pool3d_backward geqrf
    geqrf.a hash_tensor.out histogram.bin_ct histogram.bin_ct_out histogram.bins_tensor igamma.out igammac.out
    linalg_eig linalg_eig.out linalg_eigvals.out linalg_ldl_factor_ex.out linalg_ldl_solve.out linalg_lstsq.out
    linalg_matrix_exp ormqr ormqr.out special_airy_ai.out special_bessel_j0.out special_bessel_j1.out
    special_bessel_y0.out special_bessel_y1.out special_chebyshev_polynomial_t.out
    special_chebyshev_polynomial_u.out special_chebyshev_polynomial_v.out special_chebyshev_polynomial_w.out
    special_hermite_polynomial_h.out special_hermite_polynomial_he.out special_laguerre_polynomial_l.out
    special_legendre_polynomial_p.out special_modified_bessel_i0.out special_modified_bessel_i1.out
    special_modified_bessel_k0.out special_modified_bessel_k1.out special_scaled_modified_bessel_k0.out
    special_scaled_modified_bessel_k1.out special_shifted_chebyshev_polynomial_t.out
    special_shifted_chebyshev_polynomial_u.out special_shifted_chebyshev_polynomial_v.out
    special_shifted_chebyshev_polynomial_w.out special_spherical_bessel_j0.out unique_consecutive
    """.split()
)
