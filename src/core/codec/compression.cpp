#include <muster/core/codec/compression.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include <muster/core/spec.hpp>

namespace muster::inline v0 {
namespace {

enum class argument : std::uint8_t { none, share, rank };

struct method_info {
  compression_method method;
  std::string_view name;
  argument takes;
  dtype summed_as;
  bool shares_draw;
  bool is_biased;
};

constexpr std::array<method_info, 9> methods = {{
    {compression_method::none, "none", argument::none, dtype::float32, false, false},
    {compression_method::float16, "float16", argument::none, dtype::float16, false, false},
    {compression_method::bfloat16, "bfloat16", argument::none, dtype::bfloat16, false, false},
    {compression_method::qsgd8, "qsgd8", argument::none, dtype::none, false, false},
    {compression_method::sign, "sign", argument::none, dtype::none, false, true},
    {compression_method::topk, "topk", argument::share, dtype::none, false, true},
    {compression_method::randomk, "randomk", argument::share, dtype::float32, true, true},
    {compression_method::blockk, "blockk", argument::share, dtype::float32, true, true},
    {compression_method::powersgd, "powersgd", argument::rank, dtype::none, false, true},
}};

const method_info& info_of(compression_method method) { return methods[static_cast<std::size_t>(method)]; }

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
  const auto& method = info_of(which.method);
  const std::string name(method.name);
  if (method.takes == argument::rank) return name + ":" + std::to_string(which.rank);
  if (method.takes == argument::none) return name;
  char share[32];
  return name + ":" + std::string(share, std::to_chars(share, share + sizeof share, which.share).ptr);
}

any_codec::any_codec(const compression& which) : which_(which) {
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

dtype any_codec::summed_as() const noexcept { return info_of(which_.method).summed_as; }
bool any_codec::shares_draw() const noexcept { return info_of(which_.method).shares_draw; }
bool any_codec::is_biased() const noexcept { return info_of(which_.method).is_biased; }
std::size_t any_codec::encoded_bytes(std::size_t count) const {
  return std::visit([&](const auto& held) { return held.encoded_bytes(count); }, held_);
}
void any_codec::encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
  std::visit([&](const auto& held) { held.encode(values, draw, encoded); }, held_);
}
void any_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight,
                           std::span<float> sums) const {
  std::visit([&](const auto& held) { held.decode_add(encoded, draw, weight, sums); }, held_);
}

}  // namespace muster::inline v0
