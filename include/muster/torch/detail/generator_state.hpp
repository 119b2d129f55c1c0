// The state of LibTorch's generator of random numbers on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

[[nodiscard]] inline at::Generator default_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

/// Returns and sets the state of the default generator, as bytes.
[[nodiscard]] inline at::Tensor state_of_generator() {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
inline void set_generator(const at::Tensor& state) {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// Describes the state of the default generator, which dropout and augmentations draw from. It is each rank's own, and
/// a step that fails restores it, so that a repeated step draws the same numbers.
inline void describe_generator(state_parts& parts) {
  parts.add(
      "random numbers of LibTorch", state_kind::rank_local,
      [] {
        const at::Tensor state = state_of_generator();
        const auto* const bytes = static_cast<const std::byte*>(state.data_ptr());
        return std::vector<std::byte>(bytes, bytes + state.numel());
      },
      [](std::span<const std::byte> bytes) {
        if (static_cast<std::int64_t>(bytes.size()) != state_of_generator().numel()) {
          throw configuration_error("the saved state of LibTorch's generator has " + std::to_string(bytes.size()) +
                                    " bytes (this LibTorch's has another size); use the LibTorch that saved it");
        }
        at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
        std::ranges::copy(bytes, static_cast<std::byte*>(state.data_ptr()));
        set_generator(state);
      },
      rollback_policy::restore_on_failure);
}

/// Warns, once a process and at the first step, of random numbers that ranks share, or that are the same at all ranks;
/// collective.
inline void warn_about_generators(group& ranks, bool are_threads, bool has_dropout) {
  static std::once_flag warned;
  const std::uint64_t seed = default_generator().current_seed();
  const bool same = ranks.size() > 1 && allreduce(ranks, seed, min) == allreduce(ranks, seed, max);
  if (ranks.size() == 1 || !has_dropout || (!are_threads && !same)) return;
  std::call_once(warned, [&] {
    log(log_level::warning,
        are_threads ? "ranks as threads share one generator of LibTorch (their dropout depends on the order of the "
                      "threads, so a run cannot be repeated); start the ranks as processes"
                    : "the ranks draw the same numbers for dropout (their generators have the same seed); call "
                      "torch::manual_seed(seed + rank) after the model is made parallel");
  });
}

}}}}  // namespace muster::v0::torch::detail
