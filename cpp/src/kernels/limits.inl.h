// Loops of nothing but one kind of work, for measuring what the machine can do at most.
// Each returns the work it did; `sink` keeps the compiler from leaving it out.

constexpr int kChains = 8;  // independent ones: more than the latency of an operation needs

std::uint64_t burn_f32(std::uint32_t rounds, float* sink) {
  vf sums[kChains];
  PYKV_UNROLL
  for (int i = 0; i < kChains; ++i)
    sums[i] = splat(sink[0] + static_cast<float>(i));  // equal chains would be one
  const vf a = splat(sink[1]);
  const vf b = splat(sink[2]);
  for (std::uint32_t round = 0; round < rounds; ++round) PYKV_UNROLL
  for (int i = 0; i < kChains; ++i) sums[i] = multiply_add(sums[i], a, b);
  vf total{};
  PYKV_UNROLL
  for (int i = 0; i < kChains; ++i) total += sums[i];
  sink[0] = total[0];
  return std::uint64_t{rounds} * kChains * kLanes * 2;
}

std::uint64_t burn_int8(std::uint32_t rounds, float* sink) {
  constexpr int kRows = kVecs == 1 ? kChains : 4;  // as the linear layers have it
  std::int8_t a[kRows * kActivationBlock];
  std::memset(a, 1, sizeof a);
  vi words[8];
  PYKV_UNROLL
  for (vi& word : words) word = (vi{} + static_cast<std::int32_t>(sink[0])) & 0x0f0f0f0f;
  Codes<15> weights[kVecs];
  PYKV_UNROLL
  for (Codes<15>& weight : weights) weight = Codes<15>(words);
  vi sums[kVecs][kRows] = {};
  for (std::uint32_t round = 0; round < rounds; ++round) {
    read_again(weights);
    read_again(a);
    add_dots<kRows>(weights, a, sums);
  }
  vi total{};
  PYKV_UNROLL
  for (int v = 0; v < kVecs; ++v) PYKV_UNROLL
  for (int i = 0; i < kRows; ++i) total += sums[v][i];
  sink[0] = static_cast<float>(total[0] & 7);
  return std::uint64_t{rounds} * kVecs * kRows * kLanes * kActivationBlock * 2;
}

// `bytes` is a multiple of 1,024.
std::uint64_t read_bytes(const std::byte* from, std::size_t bytes, float* sink) {
  vi sums[4] = {};
  for (std::size_t at = 0; at < bytes; at += sizeof sums) PYKV_UNROLL
  for (std::size_t i = 0; i < 4; ++i) sums[i] ^= load_words(from + at + i * sizeof(vi));
  sink[0] += static_cast<float>((sums[0] ^ sums[1] ^ sums[2] ^ sums[3])[0] & 1);
  return bytes;
}
