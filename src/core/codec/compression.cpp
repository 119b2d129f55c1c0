#include <muster/core/codec/compression.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include <muster/core/spec.hpp>

namespace muster::inline v0 {
namespace {

enum class argument : std::uint8_t { none, share, rank };

struct method_info {
  compression_method method;
  std::string_view name;
  argument takes;
};

constexpr std::array<method_info, 9> methods = {{{compression_method::none, "none", argument::none},
                                                 {compression_method::float16, "float16", argument::none},
                                                 {compression_method::bfloat16, "bfloat16", argument::none},
                                                 {compression_method::qsgd8, "qsgd8", argument::none},
                                                 {compression_method::sign, "sign", argument::none},
                                                 {compression_method::topk, "topk", argument::share},
                                                 {compression_method::randomk, "randomk", argument::share},
                                                 {compression_method::blockk, "blockk", argument::share},
                                                 {compression_method::powersgd, "powersgd", argument::rank}}};

}  // namespace

compression parse_compression(std::string_view text) {
  spec_reader spec("compression", text);
  std::vector<std::string> names;
  for (const auto& one : methods) names.emplace_back(one.name);
  const auto name = spec.name(names, "such as float16 or topk:0.1");
  const auto& method = *std::find_if(methods.begin(), methods.end(), [&](const auto& one) { return one.name == name; });
  compression parsed{.method = method.method};
  if (method.takes == argument::share) parsed.share = spec.number("share", 0.0, true);
  if (parsed.share > 1.0) spec.refuse("a share is at most 1", "write such as " + name + ":0.1");
  if (method.takes == argument::rank) parsed.rank = spec.read_whole("rank", spec.value("rank"), 1, 1024);
  spec.finish(to_string(parsed));
  return parsed;
}

std::string to_string(const compression& which) {
  const auto& method = methods[static_cast<std::size_t>(which.method)];
  if (method.takes == argument::share) return detail::spell(method.name, which.share);
  if (method.takes == argument::rank) return std::string(method.name) + ":" + std::to_string(which.rank);
  return std::string(method.name);
}

any_codec::any_codec(const compression& which) {
  switch (which.method) {
    case compression_method::none:
      break;
    case compression_method::float16:
      held_ = float16_codec();
      break;
    case compression_method::bfloat16:
      held_ = bfloat16_codec();
      break;
    case compression_method::qsgd8:
      held_ = qsgd8_codec();
      break;
    case compression_method::sign:
      held_ = sign_codec();
      break;
    case compression_method::topk:
      held_ = topk_codec(which.share);
      break;
    case compression_method::randomk:
      held_ = randomk_codec(which.share);
      break;
    case compression_method::blockk:
      held_ = blockk_codec(which.share);
      break;
    case compression_method::powersgd:
      spec_reader("compression", to_string(which))
          .refuse("powersgd compresses the matrices of all ranks together, not a message of one",
                  "choose another one here");
  }
}

std::string any_codec::name() const {
  return std::visit([](const auto& held) { return held.name(); }, held_);
}
std::size_t any_codec::encoded_bytes(std::size_t count) const {
  return std::visit([&](const auto& held) { return held.encoded_bytes(count); }, held_);
}
dtype any_codec::summed_as() const {
  return std::visit([](const auto& held) { return held.summed_as(); }, held_);
}
bool any_codec::shares_draw() const {
  return std::visit([](const auto& held) { return held.shares_draw(); }, held_);
}
bool any_codec::is_biased() const {
  return std::visit([](const auto& held) { return held.is_biased(); }, held_);
}
void any_codec::encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
  std::visit([&](const auto& held) { held.encode(values, draw, encoded); }, held_);
}
void any_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight,
                           std::span<float> sums) const {
  std::visit([&](const auto& held) { held.decode_add(encoded, draw, weight, sums); }, held_);
}

}  // namespace muster::inline v0
