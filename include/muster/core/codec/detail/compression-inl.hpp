#pragma once

#include <muster/core/codec/compression.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

enum class argument : std::uint8_t { none, share, rank };

struct method_info {
  compression_method method;
  std::string_view name;
  argument takes;
  codec_traits traits;
  any_codec (*make)(const compression& options, const codec_traits& traits);  // null: not a codec of spans
};

template <codec C>
any_codec make_codec(const compression& options, const codec_traits& traits) {
  if constexpr (std::is_constructible_v<C, double>)
    return any_codec(C(options.share), traits);
  else
    return any_codec(C(), traits);
}

inline constexpr std::array<method_info, 7> methods = {{
    {compression_method::none, "none", argument::none, {dtype::float32, false, false}, make_codec<plain_codec>},
    {compression_method::float16, "float16", argument::none, {dtype::float16, false, false}, make_codec<float16_codec>},
    {compression_method::bfloat16,
     "bfloat16",
     argument::none,
     {dtype::bfloat16, false, false},
     make_codec<bfloat16_codec>},
    {compression_method::qsgd8, "qsgd8", argument::none, {dtype::none, false, false}, make_codec<qsgd8_codec>},
    {compression_method::sign, "sign", argument::none, {dtype::none, false, true}, make_codec<sign_codec>},
    {compression_method::topk, "topk", argument::share, {dtype::none, false, true}, make_codec<topk_codec>},
    {compression_method::powersgd, "powersgd", argument::rank, {dtype::none, false, true}, nullptr},
}};

// Returns the entry of a method, except for registered methods.
inline const method_info& info_of(compression_method method) { return methods[static_cast<std::size_t>(method)]; }

inline std::mutex mutex_of_codecs;

// Returns the registered codecs. The caller must hold mutex_of_codecs.
inline std::map<std::string, codec_factory, std::less<>>& registered_codecs() {
  static std::map<std::string, codec_factory, std::less<>> all;
  return all;
}

// Returns the names of all methods. The caller must hold mutex_of_codecs.
inline std::vector<std::string> known_methods() {
  std::vector<std::string> names;
  for (const auto& method : methods) names.emplace_back(method.name);
  for (const auto& [name, make] : registered_codecs()) names.push_back(name);
  return names;
}

inline any_codec make_registered(spec_reader spec) {
  const codec_factory make = [&] {
    const std::lock_guard lock(mutex_of_codecs);
    const auto found = registered_codecs().find(spec.name());
    if (found == registered_codecs().end())
      spec.refuse("no codec with that name is registered", "call register_codec first");
    return found->second;
  }();
  any_codec result = make(spec);
  spec.finish(spec.name());
  return result;
}

}  // namespace detail

MUSTER_INLINE compression parse_compression(std::string_view text) {
  spec_reader spec("compression", text);
  const auto name = [&] {
    const std::lock_guard lock(detail::mutex_of_codecs);
    return spec.name(detail::known_methods(), "such as float16 or topk:0.1");
  }();
  const auto found = std::find_if(detail::methods.begin(), detail::methods.end(),
                                  [&](const auto& method) { return method.name == name; });
  if (found == detail::methods.end()) {
    (void)detail::make_registered(spec);  // throws for values that the codec rejects
    return {.method = compression_method::registered, .text = std::string(text)};
  }
  const auto& method = *found;
  compression parsed{.method = method.method};
  if (method.takes == detail::argument::share) parsed.share = spec.number("share", 0.0, true);
  if (parsed.share > 1.0) spec.refuse("a share may be at most 1", "write such as " + name + ":0.1");
  if (method.takes == detail::argument::rank) parsed.rank = spec.read_whole("rank", spec.value("rank"), 1, 1024);
  spec.finish(to_string(parsed));
  return parsed;
}

MUSTER_INLINE std::string to_string(const compression& options) {
  if (options.method == compression_method::registered) return options.text;
  const auto& method = detail::info_of(options.method);
  const std::string name(method.name);
  if (method.takes == detail::argument::rank) return name + ":" + std::to_string(options.rank);
  if (method.takes == detail::argument::none) return name;
  char share[32];
  return name + ":" + std::string(share, std::to_chars(share, share + sizeof share, options.share).ptr);
}

MUSTER_INLINE any_codec::any_codec(const compression& options) {
  const std::string name = to_string(options);
  if (options.method == compression_method::registered) {
    *this = detail::make_registered({"compression", options.text});
  } else if (const auto& method = detail::info_of(options.method); method.make != nullptr) {
    *this = method.make(options, method.traits);
  } else {
    spec_reader("compression", name)
        .refuse("powersgd compresses the ranks' matrices together, not the message from a single rank",
                "choose another method here");
  }
  name_ = name;
}

MUSTER_INLINE void register_codec(std::string_view name, codec_factory make) {
  const std::lock_guard lock(detail::mutex_of_codecs);
  detail::require_registrable("codec", name, detail::known_methods(), make != nullptr);
  detail::registered_codecs().emplace(name, make);
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
