#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>

#include <chrono>
#include <iterator>
#include <string>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "fuzz/store.hpp"

using namespace muster::detail;

namespace {

const auto seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());

/// Returns a request that is often valid: few keys, small versions.
std::string sensible(muster::random_stream& random) {
  static const std::string keys[] = {"a", "b", "key/1", "key/2", std::string(3, '\0')};
  static const std::string values[] = {"", "v", "another", std::string(300, 'x')};
  store_request request;
  request.call = static_cast<store_call>(1 + random.below(5));
  request.id = random.below(30);
  request.version = random.below(3) == 0 ? 0 : random.below(40);
  const bool has_key =
      request.call == store_call::get || request.call == store_call::swap || request.call == store_call::watch;
  if (has_key) request.key = keys[random.below(std::size(keys))];
  if (request.call == store_call::swap && random.below(4) != 0) request.value = values[random.below(std::size(values))];
  if (request.value && random.below(3) == 0) request.life = muster::store_life::of_client;
  std::string bytes;
  append_frame(bytes, request);
  return bytes;
}

int check(const std::string& bytes) {
  try {
    return fuzz::check_store(bytes);
  } catch (const std::logic_error& broken) {
    CAPTURE(seed, bytes);
    FAIL(broken.what());
  }
  return 0;
}

}  // namespace

TEST_CASE("a store's table does what a naive one does, whatever is asked in whatever order") {
  CAPTURE(seed);
  muster::random_stream random(seed);
  int requests = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes;
    for (int n = 0; n < 150; ++n) {
      bytes += sensible(random);
      if (random.below(60) == 0) bytes += std::string("\1\0\0\0x", 5);  // a client ends
    }
    requests += check(bytes);
  }
  CHECK(requests == 300 * 150);
}

TEST_CASE("no bytes make the store's protocol crash or the table wrong") {
  CAPTURE(seed);
  muster::random_stream random(seed + 1);
  int requests = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes;
    for (auto n = 1 + random.below(12); n > 0; --n) bytes += sensible(random);
    for (auto changes = 1 + random.below(6); changes > 0; --changes) {
      const auto at = random.below(bytes.size() + 1);
      if (random.below(3) == 0) {
        bytes.insert(at, 1, static_cast<char>(random.below(256)));
      } else if (random.below(3) == 0) {
        bytes.erase(at, random.below(5));
      } else if (at < bytes.size()) {
        bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << random.below(8)));
      }
    }
    requests += check(bytes);
  }
  CHECK(requests > 3000);  // otherwise the mutations are too coarse
}

TEST_CASE("a frame is believed up to the limit, and found as soon as it is whole") {
  std::string bytes;
  append_frame(bytes, {.call = store_call::swap,
                       .id = 7,
                       .version = 8,
                       .key = std::string(muster::store_key_limit, 'k'),
                       .value = std::string(muster::store_value_limit, 'v'),
                       .life = muster::store_life::of_client});
  for (const std::size_t part : {std::size_t{0}, std::size_t{3}, std::size_t{4}, std::size_t{500}, bytes.size() - 1}) {
    CHECK_FALSE(first_frame(std::string_view(bytes).substr(0, part)));
  }
  const std::size_t whole = bytes.size();
  bytes += "more";
  const auto frame = first_frame(bytes);
  REQUIRE(frame);
  CHECK(frame->bytes == whole);
  const auto read = parse_request(frame->body);
  REQUIRE(read);
  CHECK((read->id == 7 && read->version == 8 && read->life == muster::store_life::of_client));
  CHECK((read->key.size() == muster::store_key_limit && read->value->size() == muster::store_value_limit));

  for (const std::uint32_t length : {std::uint32_t{store_frame_limit + 1}, 0xffffffffU, 0x80000000U}) {
    std::string lying;
    for (int i = 0; i < 4; ++i) lying += static_cast<char>(length >> (8 * i) & 0xff);
    REQUIRE(first_frame(lying));
    CHECK_FALSE(parse_request(first_frame(lying)->body));
    CHECK_FALSE(parse_reply(first_frame(lying)->body));
  }
  std::string too_long;
  append_frame(too_long, {.call = store_call::get, .key = std::string(muster::store_key_limit + 1, 'k')});
  CHECK_FALSE(parse_request(first_frame(too_long)->body));
  too_long.clear();
  append_frame(too_long,
               {.call = store_call::swap, .key = "k", .value = std::string(muster::store_value_limit + 1, 'v')});
  CHECK_FALSE(parse_request(first_frame(too_long)->body));
}
