// What the vocabularies have in common. Included after one of them.

constexpr int kVecs = static_cast<int>(kPanelWidth) / kLanes;  // vectors of a panel row

typedef std::uint32_t vu __attribute__((vector_size(sizeof(vf))));

PYKV_INLINE vf load(const float* from) {
  vf v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

PYKV_INLINE vf load_f32(const std::byte* from) {
  vf v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

PYKV_INLINE vi load_words(const void* from) {
  vi v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// As if memory had changed: what is kept in registers from here on is read anew. Too much of it
// would leave none for sums.
template <class Object>
PYKV_INLINE void read_again(const Object& object) {
  asm volatile("" : : "r"(&object) : "memory");
}

// Four bytes as a word.
PYKV_INLINE std::int32_t load_int(const std::int8_t* from) {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

PYKV_INLINE void store(float* to, vf v) { std::memcpy(to, &v, sizeof v); }
PYKV_INLINE vf splat(float x) { return x - vf{}; }  // x + 0 would lose the sign of -0
PYKV_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }
PYKV_INLINE vf as_float(vi bits) { return reinterpret_cast<vf>(bits); }
PYKV_INLINE vf max(vf a, vf b) { return a > b ? a : b; }

PYKV_INLINE void store_i8(std::int8_t* to, vi v) {
  typedef std::int8_t bytes __attribute__((vector_size(kLanes)));
  const bytes narrow = __builtin_convertvector(v, bytes);
  std::memcpy(to, &narrow, sizeof narrow);
}

// Lane i holds what lane i ^ step held.
template <int step, class Vector, int... lane>
PYKV_INLINE Vector exchanged(Vector v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane ^ step)...);
}

// Every lane with every other by halves, for operations whose order does not matter.
template <class Operation, int step = kLanes / 2, class Vector>
PYKV_INLINE Vector combined(Vector v) {
  if constexpr (step == 0) {
    return v;
  } else {
    const Vector other = exchanged<step>(v, std::make_integer_sequence<int, kLanes>{});
    return combined<Operation, step / 2>(Operation::apply(v, other));
  }
}

// What becomes of NaN may wrap.
struct Sum {
  PYKV_INLINE static vi apply(vi a, vi b) { return vi(vu(a) + vu(b)); }
};
PYKV_INLINE vi negated(vi v) { return vi(-vu(v)); }

struct Larger {
  PYKV_INLINE static vi apply(vi a, vi b) { return a > b ? a : b; }
  PYKV_INLINE static vf apply(vf a, vf b) { return max(a, b); }
};

// Lane l: of a pair of neighbours `step` apart, in `first` where bit `step` of l is 0, else in `second`.
template <class Operation, int step, class Vector, int... lane>
PYKV_INLINE Vector folded(Vector first, Vector second, std::integer_sequence<int, lane...>) {
  const Vector low =
      __builtin_shufflevector(first, second, ((lane & step) == 0 ? lane : kLanes + lane - step)...);
  const Vector high =
      __builtin_shufflevector(first, second, ((lane & step) == 0 ? lane + step : kLanes + lane)...);
  return Operation::apply(low, high);
}

// Lane l: all lanes of rows[l] together, for operations whose order does not matter. Takes a quarter of
// the instructions of kLanes times combined().
template <class Operation, int step = kLanes / 2, class Vector>
PYKV_INLINE Vector of_each(Vector* rows) {
  if constexpr (step == 0) {
    return rows[0];
  } else {
    PYKV_UNROLL
    for (int i = 0; i < step; ++i)
      rows[i] = folded<Operation, step>(rows[i], rows[i + step], std::make_integer_sequence<int, kLanes>{});
    return of_each<Operation, step / 2>(rows);
  }
}

PYKV_INLINE std::int32_t sum_of_lanes(vi v) { return combined<Sum>(v)[0]; }
PYKV_INLINE std::int32_t largest_lane(vi v) { return combined<Larger>(v)[0]; }

// Lane 0 first: a fixed order.
PYKV_INLINE float sum_lanes(vf v) {
  float total = v[0];
  for (int i = 1; i < kLanes; ++i) total += v[i];
  return total;
}

// Of two vectors, those lanes of both that have bit `step` clear in one, those that have it set in the
// other; where the second one comes from, that bit is turned over.
template <int step, int... lane>
PYKV_INLINE void exchange_halves(vf& first, vf& second, std::integer_sequence<int, lane...>) {
  const vf a = first, b = second;
  first = __builtin_shufflevector(a, b, ((lane & step) == 0 ? lane : kLanes + lane - step)...);
  second = __builtin_shufflevector(a, b, ((lane & step) == 0 ? lane + step : kLanes + lane)...);
}

// Lane i of vector j becomes lane j of vector i, of kLanes vectors.
template <int step = kLanes / 2>
PYKV_INLINE void transpose(vf* rows) {
  if constexpr (step != 0) {
    PYKV_UNROLL
    for (int i = 0; i < kLanes; ++i)
      if ((i & step) == 0)
        exchange_halves<step>(rows[i], rows[i + step], std::make_integer_sequence<int, kLanes>{});
    transpose<step / 2>(rows);
  }
}

// Lane l: sum_lanes(rows[l]), the same bits.
PYKV_INLINE vf sums_of_lanes(vf* rows) {
  transpose(rows);
  vf total = rows[0];
  for (int i = 1; i < kLanes; ++i) total += rows[i];
  return total;
}

PYKV_INLINE float max_lane(vf v) { return combined<Larger>(v)[0]; }

// e^x, relative error below 2^-22; 0 below -87.3, finite (not infinite) above 88.3; NaN
// stays NaN. x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts so that n ln 2 is
// exact enough, then the Taylor polynomial of degree 7 (its remainder is 2^-27).
PYKV_INLINE vf exponential(vf x) {
  const vf bounded = x > 88.3F ? splat(88.3F) : x;
  const vf shift = splat(12582912.0F);  // 1.5 * 2^23: the sum has no fraction bits left
  const vf shifted = multiply_add(bounded, splat(1.44269504F), shift);
  const vf n = shifted - shift;
  vf r = multiply_add(n, splat(-0.693145751953125F), bounded);
  r = multiply_add(n, splat(-1.42860677e-6F), r);
  vf p = splat(1.0F / 5040.0F);
  p = multiply_add(p, r, splat(1.0F / 720.0F));
  p = multiply_add(p, r, splat(1.0F / 120.0F));
  p = multiply_add(p, r, splat(1.0F / 24.0F));
  p = multiply_add(p, r, splat(1.0F / 6.0F));
  p = multiply_add(p, r, splat(0.5F));
  p = multiply_add(p, r, splat(1.0F));
  p = multiply_add(p, r, splat(1.0F));
  // The low bits of `shifted` hold n; 2^n by its exponent field, which wraps where the result
  // is 0 below, hence unsigned.
  const vu power = (reinterpret_cast<vu>(shifted) << 23) + 0x3f800000U;
  return x < -87.3F ? vf{} : p * reinterpret_cast<vf>(power);
}

// tanh x, relative error below 2^-21. Near 0 the odd Taylor polynomial of degree 13 (its
// remainder at 0.4 is 2^-28 of the value), elsewhere 1 - 2 / (e^2x + 1).
PYKV_INLINE vf hyperbolic_tangent(vf x) {
  const vf square = x * x;
  vf p = splat(21844.0F / 6081075.0F);
  p = multiply_add(p, square, splat(-1382.0F / 155925.0F));
  p = multiply_add(p, square, splat(62.0F / 2835.0F));
  p = multiply_add(p, square, splat(-17.0F / 315.0F));
  p = multiply_add(p, square, splat(2.0F / 15.0F));
  p = multiply_add(p, square, splat(-1.0F / 3.0F));
  const vf near = multiply_add(p * square, x, x);
  const vf far = 1.0F - 2.0F / (exponential(x + x) + 1.0F);
  return square < 0.16F ? near : far;
}
