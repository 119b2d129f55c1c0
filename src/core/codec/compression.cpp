#include <muster/core/codec/compression.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

namespace muster { inline namespace v0 {
namespace {

enum class argument : std::uint8_t { none, share, rank };

struct method_info {
  compression_method method;
  std::string_view name;
  argument takes;
  codec_traits traits;
  any_codec (*make)(const compression& which, const codec_traits& traits);  // null: no codec of spans
};

template <codec C>
any_codec made(const compression& which, const codec_traits& traits) {
  if constexpr (std::is_constructible_v<C, double>)
    return any_codec(C(which.share), traits);
  else
    return any_codec(C(), traits);
}

constexpr std::array<method_info, 9> methods = {{
    {compression_method::none, "none", argument::none, {dtype::float32, false, false}, made<plain_codec>},
    {compression_method::float16, "float16", argument::none, {dtype::float16, false, false}, made<float16_codec>},
    {compression_method::bfloat16, "bfloat16", argument::none, {dtype::bfloat16, false, false}, made<bfloat16_codec>},
    {compression_method::qsgd8, "qsgd8", argument::none, {dtype::none, false, false}, made<qsgd8_codec>},
    {compression_method::sign, "sign", argument::none, {dtype::none, false, true}, made<sign_codec>},
    {compression_method::topk, "topk", argument::share, {dtype::none, false, true}, made<topk_codec>},
    {compression_method::randomk, "randomk", argument::share, {dtype::float32, true, true}, made<randomk_codec>},
    {compression_method::blockk, "blockk", argument::share, {dtype::float32, true, true}, made<blockk_codec>},
    {compression_method::powersgd, "powersgd", argument::rank, {dtype::none, false, true}, nullptr},
}};

// All but registered ones.
const method_info& info_of(compression_method method) { return methods[static_cast<std::size_t>(method)]; }

std::mutex mutex_of_codecs;

// With the mutex held.
std::map<std::string, codec_factory, std::less<>>& registered_codecs() {
  static std::map<std::string, codec_factory, std::less<>> all;
  return all;
}

// With the mutex held.
std::vector<std::string> known_methods() {
  std::vector<std::string> names;
  for (const auto& one : methods) names.emplace_back(one.name);
  for (const auto& [name, make] : registered_codecs()) names.push_back(name);
  return names;
}

any_codec make_registered(spec_reader from) {
  const codec_factory make = [&] {
    const std::lock_guard held(mutex_of_codecs);
    const auto found = registered_codecs().find(from.name());
    if (found == registered_codecs().end())
      from.refuse("no codec of that name was registered", "call register_codec first");
    return found->second;
  }();
  any_codec made = make(from);
  from.finish(from.name());
  return made;
}

}  // namespace

compression parse_compression(std::string_view text) {
  spec_reader spec("compression", text);
  const auto name = [&] {
    const std::lock_guard held(mutex_of_codecs);
    return spec.name(known_methods(), "such as float16 or topk:0.1");
  }();
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const auto& one) { return one.name == name; });
  if (found == methods.end()) {
    (void)make_registered(spec);  // throws for values that it refuses
    return {.method = compression_method::registered, .text = std::string(text)};
  }
  const auto& method = *found;
  compression parsed{.method = method.method};
  if (method.takes == argument::share) parsed.share = spec.number("share", 0.0, true);
  if (parsed.share > 1.0) spec.refuse("a share is at most 1", "write such as " + name + ":0.1");
  if (method.takes == argument::rank) parsed.rank = spec.read_whole("rank", spec.value("rank"), 1, 1024);
  spec.finish(to_string(parsed));
  return parsed;
}

std::string to_string(const compression& which) {
  if (which.method == compression_method::registered) return which.text;
  const auto& method = info_of(which.method);
  const std::string name(method.name);
  if (method.takes == argument::rank) return name + ":" + std::to_string(which.rank);
  if (method.takes == argument::none) return name;
  char share[32];
  return name + ":" + std::string(share, std::to_chars(share, share + sizeof share, which.share).ptr);
}

any_codec::any_codec(const compression& which) {
  const std::string name = to_string(which);
  if (which.method == compression_method::registered) {
    *this = make_registered({"compression", which.text});
  } else if (const auto& method = info_of(which.method); method.make != nullptr) {
    *this = method.make(which, method.traits);
  } else {
    spec_reader("compression", name)
        .refuse("powersgd compresses the matrices of all ranks together, not a message of one",
                "choose another one here");
  }
  name_ = name;
}

void register_codec(std::string_view name, codec_factory make) {
  const std::lock_guard held(mutex_of_codecs);
  detail::require_registrable("codec", name, known_methods(), make != nullptr);
  registered_codecs().emplace(name, make);
}

}}  // namespace muster::v0
