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

# Overloads that run on the CPU, by operator: no row, no composite, no decomposition.
FALLBACKS = {
    "bincount": "bincount",
    "cholesky": "cholesky cholesky.out",
    "geqrf": "geqrf geqrf.a",
    "hash_tensor": "hash_tensor.out",
    "histogram": "histogram.bin_ct histogram.bin_ct_out histogram.bins_tensor",
    "histogramdd": "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
    "linalg.eig": "linalg_eig linalg_eig.out",
    "linalg.eigvals": "_linalg_eigvals linalg_eig linalg_eigvals.out",
    "linalg.ldl_factor": "linalg_ldl_factor_ex.out",
    "linalg.ldl_factor_ex": "linalg_ldl_factor_ex.out",
    "linalg.ldl_solve": "linalg_ldl_solve.out",
    "linalg.lstsq": "linalg_lstsq.out",
    "linalg.lstsq.grad_oriented": "linalg_lstsq.out",
    "matrix_exp": "linalg_matrix_exp",
    "nn.functional.fractional_max_pool2d": "fractional_max_pool2d.output fractional_max_pool2d_backward.grad_input",
    "nn.functional.fractional_max_pool3d": "fractional_max_pool3d.output fractional_max_pool3d_backward",
    "ormqr": "ormqr ormqr.out",
    "unique": "_unique2",
    "unique_consecutive": "unique_consecutive",
}
