// Floor 5. What a step will take, learned from the steps before it, so that a prompt's share of a
// step can be as large as those who generate can bear. Pure: times come in, token counts go out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace pykv::engine {

class StepCost {
 public:
  // A step with so many tokens of generating sequences and of prompts took so long.
  void observe(std::uint32_t generating, std::uint32_t prompt, double seconds);

  // Prompt tokens with which a step beside `generating` tokens takes about `factor` (> 1) times
  // as long as without, at least kLeastShare; now and then 0, to see how long that is. Fewer while
  // steps take longer than predicted, as when another program holds the machine up for a while.
  // nullopt: not known yet.
  std::optional<std::uint32_t> prompt_tokens(std::uint32_t generating, double factor) const;

  static constexpr std::uint32_t kLeastShare = 4;  // a prompt always goes on
  // Steps with prompts after which one without is due: those who generate become slower as they grow.
  static constexpr std::uint32_t kLookAgain = 32;

 private:
  std::optional<double> without_prompt(std::uint32_t generating) const;

  std::map<std::uint32_t, double> without_prompt_;  // seconds of a step, by generating tokens
  std::optional<double> prompt_token_;              // seconds that one adds to such a step
  std::uint32_t since_without_ = 0;                 // steps with prompts since one without
  double delay_ = 1;                                // time of the newest such steps over what was predicted
};

}  // namespace pykv::engine
