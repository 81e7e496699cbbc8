// Attention on 16-bit integers: both products in half the instructions of float32, or in half the
// multiplications. Each tier that has it adds a vocabulary, int16_*.inl.h.
//
// A query and the K of a cell become integers of one length (Euclidean, kNorm), so that their
// product stays below 2^30 and is wrong by 2^-17 of |q| |k| at most however elements are spread;
// f16 K is wrong by as much already.
// V of a cell becomes integers up to kMostV; what it stands for is multiplied to the softmax's
// weight, and the weights of a query become integers of length kWeightNorm over the partition: by
// Cauchy and Schwarz no sum over 256 slots exceeds 2^31.
//
// Integer sums are exact, so their order is free, and weights of slots that a query does not see
// are 0: whatever stands there adds nothing. Scales come from one cell, or from what the query
// sees of the partition. So bits depend on slots alone here too.
//
// Two integers stand in a word: elements 2 i and 2 i + 1 of query and K, slots 2 i and 2 i + 1 of
// V and weight. A tile has words [panel][i][lane].

constexpr float kNorm = 32740.0F;  // rounding may add up to half the root of kMaxHeadDim, 12
constexpr float kMostV = 8191.0F;
constexpr float kWeightNorm = 16000.0F;  // 16000 + 8 for rounding, times 8191 * 16 < 2^31
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;
constexpr std::uint32_t kPartitionPairs = kPartitionPositions / 2;

// What x * factor rounds to, in the low half of each word; below 2^22.
PYKV_INLINE vi low_half(vf x, vf factor) {
  return reinterpret_cast<vi>(multiply_add(x, factor, splat(12582912.0F)));  // 1.5 * 2^23
}

// 2^f for f in [0, 1), relative error below 2^-22.
PYKV_INLINE vf power_of_fraction(vf f) {
  vf p = splat(1.867130108e-3F);
  p = multiply_add(p, f, splat(9.017030217e-3F));
  p = multiply_add(p, f, splat(5.579991321e-2F));
  p = multiply_add(p, f, splat(2.401644501e-1F));
  p = multiply_add(p, f, splat(6.931513118e-1F));
  p = multiply_add(p, f, splat(1.0F));
  return p;
}
