#include <muster/data/bad_records.hpp>

#include <fstream>
#include <iterator>

#include "catch.hpp"
#include "files.hpp"

namespace {

std::vector<muster::bad_record> some(std::initializer_list<muster::sample_id> ids, const std::string& file) {
  std::vector<muster::bad_record> found;
  muster::bad_record bad;
  for (const auto id : ids) {
    bad.id = id;
    bad.location.file = file;
    bad.location.offset = id * 10;
    bad.problem = "is \"damaged\" (why) mend it";
    found.push_back(bad);
  }
  return found;
}

}  // namespace

TEST_CASE("by default the first bad record is an error that names its place") {
  muster::bad_record_log log;
  log.note("source", {});
  CHECK_THROWS_WITH(log.note("source", some({7, 8}, "file")), "file: byte 70: is \"damaged\" (why) mend it");
}

TEST_CASE("bad records are counted once each, by file, up to the limit") {
  muster::bad_record_log log({.policy = muster::bad_record_policy::skip, .limit = 4});
  muster::bad_record_log copy = log;
  log.note("one", some({1, 2}, "a"));
  copy.note("one", some({2, 1, 2}, "a"));
  copy.note("two", some({2, 3}, "b"));
  CHECK(log.count() == 4);
  CHECK(log.count_by_file() == std::map<std::string, std::uint64_t>{{"a", 2}, {"b", 2}});
  log.note("one", some({1}, "a"));
  CHECK_THROWS_WITH(log.note("one", some({9}, "a")),
                    contains("a: byte 90: ") && contains("exceeds its limit of 4 bad records"));
}

TEST_CASE("a quarantine has a line of JSON for each bad record") {
  const temporary_folder folder;
  const std::string path = folder / "bad.jsonl";
  muster::bad_record_log log({.policy = muster::bad_record_policy::quarantine, .file = path});
  log.note("s", some({5}, "a\n"));
  log.note("s", some({5, 6}, "b"));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text == R"({"source":"s","id":5,"file":"a\n","offset":50,"problem":"is \"damaged\" (why) mend it"})"
                "\n"
                R"({"source":"s","id":6,"file":"b","offset":60,"problem":"is \"damaged\" (why) mend it"})"
                "\n");
  using options = muster::bad_record_options;
  CHECK_THROWS_AS(muster::bad_record_log(options{.policy = muster::bad_record_policy::quarantine}),
                  muster::configuration_error);
}
