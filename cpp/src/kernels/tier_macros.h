// How a compiler is told the instruction set of a region, to unroll (or not) and to inline.
#pragma once

#define PYKV_INLINE inline __attribute__((always_inline))
#define PYKV_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define PYKV_UNROLL PYKV_PRAGMA(unroll)
#define PYKV_ROLLED PYKV_PRAGMA(clang loop unroll(disable))
#define PYKV_TARGET_BEGIN(features) \
  PYKV_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define PYKV_TARGET_END PYKV_PRAGMA(clang attribute pop)
#else
#define PYKV_UNROLL PYKV_PRAGMA(GCC unroll 32)
#define PYKV_ROLLED PYKV_PRAGMA(GCC unroll 1)
#define PYKV_TARGET_BEGIN(features) PYKV_PRAGMA(GCC push_options) PYKV_PRAGMA(GCC target(features))
#define PYKV_TARGET_END PYKV_PRAGMA(GCC pop_options)
#endif
