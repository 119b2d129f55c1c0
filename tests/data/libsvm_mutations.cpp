// The fuzzer's checks on inputs of a fixed seed, for every compiler and every run of the tests.
#include <algorithm>
#include <iterator>

#include <muster/core/random.hpp>
#include "../fuzz/libsvm.hpp"
#include "catch.hpp"

namespace {

constexpr std::uint64_t seed = 31;

const char* const seeds[] = {
    "+1 1:1 3:0.5 # note\n-1 2:-1.25e-3\n\n0 1:1\r\n",
    "-1 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1\n+1 5:1 7:1 17:1 22:1 36:1 40:1 51:1\n",
    "1 1:0.12345678901234567 2:1e38 3:-1e-46\n2 1:123456789 2:4.5E+5",
    "3 qid:7 1:2\n",
    "1 4294967295:1\n1 10:1\n",
};

// Pieces of text that mean something to the reader.
const char* const words[] = {":",          "#",        "\n",  "\r\n", " ",     "\t",    "1:1", " 2:2", "nan",
                             "-inf",       "1e99",     "qid", "0:1",  "+",     "-",     ".",   "e",    "\0",
                             "4294967296", "99999999", "1:",  "::",   "\n\n1", "1e-99", "# :", "-0.0", "\xff"};

std::string mutated(muster::random_stream& random, std::string text) {
  for (auto changes = 1 + random.below(6); changes > 0; --changes) {
    const auto at = random.below(text.size() + 1);
    switch (random.below(5)) {
      case 0:
        text.insert(at, 1, static_cast<char>(random.below(256)));
        break;
      case 1:
        text.insert(at, words[random.below(std::size(words))]);
        break;
      case 2:
        text.erase(at, random.below(5));
        break;
      case 3:
        text.insert(at, text.substr(random.below(text.size() + 1), random.below(20)));
        break;
      default:
        if (at < text.size())
          text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1u << random.below(8)));
    }
  }
  return text;
}

}  // namespace

TEST_CASE("no bytes make the reader crash, and what it rejects it locates") {
  CAPTURE(seed);
  muster::random_stream random(seed);
  int accepted = 0, rejected = 0;
  const auto check = [&](const std::string& text) {
    try {
      ++(fuzz::check_libsvm(text) ? accepted : rejected);
    } catch (const std::logic_error& broken) {
      CAPTURE(text);
      FAIL(broken.what());
    }
  };
  for (const char* text : seeds) check(text);
  for (int i = 0; i < 6000; ++i) check(mutated(random, seeds[random.below(std::size(seeds))]));
  for (int i = 0; i < 1000; ++i) {
    std::string text(random.below(60), '\0');
    const bool plain = random.below(2) == 0;
    for (char& c : text) c = plain ? "0123456789:. \n#-+e"[random.below(18)] : static_cast<char>(random.below(256));
    check(text);
  }
  CHECK(accepted > 300);  // else the mutations are too rough to get anywhere
  CHECK(rejected > 300);
}
