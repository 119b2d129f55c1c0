// Tests the format of flight records, and their analysis.
#include "programs/flight_report.hpp"

#include <string>

#include <muster/comm/group/call_history.hpp>
#include "catch.hpp"
#include "muster/core/random.hpp"

namespace {

muster::collective_signature call(muster::collective kind, std::uint64_t sequence, std::uint64_t count) {
  muster::collective_signature signature;
  signature.kind = kind;
  signature.sequence = sequence;
  signature.count = count;
  signature.type = muster::dtype::float32;
  signature.algorithm = muster::algorithm::ring;
  return signature;
}

// Returns the record of a world's rank that made `calls` calls, of which `done` are done: barriers, and an allreduce as
// call number `odd`.
std::string text_of(int rank, int size, std::uint64_t calls, std::uint64_t done, std::uint64_t odd) {
  muster::detail::call_history history;
  const muster::clock::time_point start{};
  for (std::uint64_t n = 0; n < calls; ++n) {
    history.record(call(n == odd ? muster::collective::allreduce : muster::collective::barrier, n, n == odd ? 10 : 0));
    if (n == done) history.began(n, start + std::chrono::seconds(3));
  }
  return "muster-flight-record 1\nprocess 12\nstatus 5\nwhy it hangs\ngroup 0 " + std::to_string(rank) + " " +
         std::to_string(size) + " " + std::to_string(done) + "\n" + history.describe(start + std::chrono::seconds(5));
}

flight_record record_of(int rank, int size, std::uint64_t calls, std::uint64_t done, std::uint64_t odd) {
  const auto read = parse_flight_record(text_of(rank, size, calls, done, odd));
  REQUIRE(read);
  return *read;
}

std::string explained(const std::vector<flight_record>& records) {
  std::string text;
  for (const auto& line : explain_hang(records)) text += line + "\n";
  return text;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a record comes back as it was written, with the last 256 calls") {
  const auto text = text_of(1, 3, 1000, 999, 999);
  CHECK(says(text, "call 998 0 0.000000 0.000000 barrier\n"));
  CHECK(says(text, "call 999 40 2.000000 0.000000 allreduce of 10 float32, by ring\n"));
  const auto read = record_of(1, 3, 1000, 999, 999);
  CHECK((read.process == 12 && read.status == 5));
  const auto& world = read.groups.at(0);
  CHECK((world.rank == 1 && world.size == 3 && world.done == 999));
  CHECK((world.ring.size() == 256 && world.ring.begin()->first == 744));
  CHECK((world.ring.at(998) == "barrier" && world.ring.at(999) == "allreduce of 10 float32, by ring"));
}

TEST_CASE("a rank without a record is missing, and so is one that has not come to the call") {
  const auto none = explained({record_of(0, 3, 58, 57, 57), record_of(2, 3, 58, 57, 57)});
  CAPTURE(none);
  CHECK(says(none, "world of 3: ranks 0 and 2: wait in call 57 (allreduce of 10 float32, by ring)"));
  CHECK(says(none, "rank 1: missing: in no collective"));
  const auto behind = explained({record_of(0, 2, 58, 57, 57), record_of(1, 2, 57, 57, 57)});
  CAPTURE(behind);
  CHECK(says(behind, "rank 1: missing: not in call 57; the last was call 56 (barrier)"));
}

TEST_CASE("the call is named in which ranks part") {
  const auto text = explained({record_of(0, 3, 58, 57, 55), record_of(1, 3, 58, 57, 54), record_of(2, 3, 58, 57, 55)});
  CAPTURE(text);
  CHECK(
      says(text,
           "the ranks part at call 54: rank 1 called allreduce of 10 float32, by ring; ranks 0 and 2 called barrier;"));
}

TEST_CASE("what is no record is none, and no record is the end of a report") {
  const std::string whole = text_of(0, 2, 3, 2, 1);
  CHECK_FALSE(parse_flight_record("garbage\n" + whole));
  const std::uint64_t seed = 20261126;
  INFO("seed " << seed);
  muster::random_stream random(seed, 0);
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = whole.substr(0, random.below(whole.size() + 1));
    for (std::uint64_t n = random.below(4); n > 0 && !damaged.empty(); --n)
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    if (const auto read = parse_flight_record(damaged)) (void)explain_hang({*read, record_of(1, 2, 3, 2, 1)});
  }
}
