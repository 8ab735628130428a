#pragma once

// The only macro that a law needs. Laws include no CUDA header, so a CPU-only build and clang-tidy see exactly the
// arithmetic that the GPU runs.
#if defined(__CUDACC__)
#define GT_HD __host__ __device__
#else
#define GT_HD
#endif

// Compiles a CPU loop once for each instruction set and picks at run time. The bits do not depend on the choice:
// contraction is off and laws use no reassociation. Sanitizers run before the resolvers may, so they get one version.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(GRADTOOL_SANITIZED) && \
    !defined(__CUDACC__)
#define GT_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GT_SIMD_CLONES
#endif
