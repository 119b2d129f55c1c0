// The checks of the fuzzers on inputs from fixed seeds, so that every compiler and every run of the tests has them.
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>

#include <muster/core/crc32c.hpp>
#include <muster/core/random.hpp>
#include "../fuzz/binary.hpp"
#include "../fuzz/csv.hpp"
#include "../fuzz/jsonl.hpp"
#include "../fuzz/libsvm.hpp"
#include "catch.hpp"
#include "files.hpp"
#include "records/records.hpp"
#include "sources/example_messages.hpp"
#include "sources/tar_text.hpp"
#include "sources/zip_text.hpp"

using namespace messages;

namespace {

constexpr std::uint64_t seed = 31;

const std::vector<std::string> libsvm_seeds = {
    "+1 1:1 3:0.5 # note\n-1 2:-1.25e-3\n\n0 1:1\r\n",
    "-1 3:1 11:1 14:1 19:1 39:1 42:1 55:1 64:1\n+1 5:1 7:1 17:1 22:1 36:1 40:1 51:1\n",
    "1 1:0.12345678901234567 2:1e38 3:-1e-46\n2 1:123456789 2:4.5E+5",
    "3 qid:7 1:2\n",
    "1 4294967295:1\n1 10:1\n",
};
const std::vector<std::string> csv_seeds = {
    "a,b,c\n1,2,3\n4.5,-6e7,8\n", "1,2\n3,4\r\n\n5,6", "\"x, y\",\"z \"\"w\"\"\"\n\"1\", 2\n NA ,\"\"\n",
    "\xef\xbb\xbfp;q;r\n1;2;3\n", "1 2 3\n4 5 6\n",    "\"a\nb\",c\n1,2\n\"3\",4\n",
};

// Pieces of text with a meaning for a reader.
const std::vector<std::string> libsvm_words = {
    ":", "#", "\n", "\r\n", " ",          "\t",       "1:1", " 2:2", "nan",   "-inf",  "1e99", "qid",  "0:1", "+",
    "-", ".", "e",  "\0",   "4294967296", "99999999", "1:",  "::",   "\n\n1", "1e-99", "# :",  "-0.0", "\xff"};
const std::vector<std::string> csv_words = {",",  "\"", "\"\"", "\n", "\r\n", "\n\n", ";",   " ",    "\t", ",,",
                                            "NA", "?",  "nan",  "1",  "1e99", "-",    "inf", "\"\n", "\r", "\xff"};

std::string mutated(muster::random_stream& random, std::string text, const std::vector<std::string>& words) {
  for (auto changes = 1 + random.below(6); changes > 0; --changes) {
    const auto at = random.below(text.size() + 1);
    switch (random.below(5)) {
      case 0:
        text.insert(at, 1, static_cast<char>(random.below(256)));
        break;
      case 1:
        if (!words.empty()) text.insert(at, words[random.below(words.size())]);
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

struct outcome {
  int accepted = 0;
  int rejected = 0;
};

outcome try_mutations(const std::function<bool(const std::string&)>& check, const std::vector<std::string>& seeds,
                      const std::vector<std::string>& words, int rounds, std::string_view letters = "") {
  CAPTURE(seed);
  muster::random_stream random(seed);
  outcome found;
  const auto try_one = [&](const std::string& text) {
    try {
      ++(check(text) ? found.accepted : found.rejected);
    } catch (const std::logic_error& broken) {
      CAPTURE(text);
      FAIL(broken.what());
    }
  };
  for (const std::string& text : seeds) try_one(text);
  for (int i = 0; i < rounds; ++i) try_one(mutated(random, seeds[random.below(seeds.size())], words));
  for (int i = 0; i < rounds / 6; ++i) {
    std::string text(random.below(60), '\0');
    const bool plain = !letters.empty() && random.below(2) == 0;
    for (char& c : text) c = plain ? letters[random.below(letters.size())] : static_cast<char>(random.below(256));
    try_one(text);
  }
  return found;
}

}  // namespace

TEST_CASE("no bytes make the LIBSVM reader crash, and what it rejects it locates") {
  const auto found = try_mutations(fuzz::check_libsvm, libsvm_seeds, libsvm_words, 6000, "0123456789:. \n#-+e");
  CHECK(found.accepted > 300);  // otherwise the mutations are too coarse to reach deep code
  CHECK(found.rejected > 300);
}

TEST_CASE("no bytes make the CSV reader crash, and what it rejects it locates") {
  const auto found = try_mutations(fuzz::check_csv, csv_seeds, csv_words, 2500, "0123456789,;. \n\"-+eNA");
  CHECK(found.accepted > 250);
  CHECK(found.rejected > 300);
}

TEST_CASE("no bytes make the reader of JSON lines crash, and what it rejects it locates") {
  const auto found = try_mutations(
      fuzz::check_jsonl,
      {"{\"a\":1,\"b\":[1,-2.5e-3],\"z\":\"\\u00e4\"}\n{\"b\":[true,null],\"z\":{\"c\":[]}}\r\n\n{\"a\":NaN}",
       "{\"a\":[[1],[2]]}\n{\"a\":[3,4]}\n", "{\"a\":1}\n{\"a\":22}\n{\"a\":0.5}\n",
       "{\"z\":\"an ignored text of many characters, most of which may change\",\"a\":1}\n"},
      {"{", "}", "[", "]", ",", ":", "\"a\":", "null", "1e99", "\n", "\\ud83d\\ude00", "-0", "\"z\":"}, 4000,
      "{}[],:\"az1.-e \n");
  CHECK(found.accepted > 80);
  CHECK(found.rejected > 300);
}

TEST_CASE("no bytes make the readers of arrays, TFRecord and manifests crash, and what they reject they locate") {
  const auto idx = try_mutations(fuzz::check_idx, {std::string("\0\0\10\2\0\0\0\2\0\0\0\3abcdef", 18)}, {}, 3000);
  CHECK(idx.rejected > 1000);
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n";
  const auto npy = try_mutations(
      fuzz::check_npy, {"\x93NUMPY\1" + std::string(1, '\0') + little_endian(header.size(), 2) + header + "12345678"},
      {"'", "(", ")", ",", "shape", "True", "'descr': '<f4'", "9999999999999999999"}, 5000);
  CHECK(npy.accepted > 50);
  CHECK(npy.rejected > 1000);
  const std::string tensors = R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
  const auto safetensors =
      try_mutations(fuzz::check_safetensors, {little_endian(tensors.size(), 8) + tensors + "1234567890"},
                    {"0", "[", "}", "\"a\":", "\"shape\":[", "18446744073709551615", "F64"}, 5000);
  CHECK(safetensors.accepted > 50);
  CHECK(safetensors.rejected > 1000);
  const auto zip = try_mutations(fuzz::check_zip,
                                 {zip::archive({{"a.npy", "first"}, {"b", "second"}}),
                                  zip::archive({{"a.npy", "first"}}, {.zip64 = true}), zip::archive({})},
                                 {"PK", zip::number(0xffffffff, 4), zip::number(0, 2)}, 5000);
  CHECK(zip.accepted > 50);
  CHECK(zip.rejected > 1000);
  const auto tar = try_mutations(fuzz::check_tar,
                                 {tar::member("x", "12 path=a.b\n", 'x') + tar::member("c.x", "1") +
                                  tar::member("long", "d.x", 'L') + tar::member("short", "2") + tar::end()},
                                 {std::string(512, '\0'), "7", "size=", std::string(1, '\xff')}, 4000);
  CHECK(tar.accepted > 50);
  CHECK(tar.rejected > 1000);
  const auto tfrecord = try_mutations(fuzz::check_tfrecord, {frame("") + frame("abc") + frame(std::string(300, 'x'))},
                                      {frame("y"), frame("")}, 3000);
  CHECK(tfrecord.accepted > 100);  // payloads are checked only when they are read
  CHECK(tfrecord.rejected > 1000);
  const std::string message =
      example(entry("a", floats({1, 2})) + entry("b", whole_numbers({1, 300})) + entry("d", whole_numbers({5})) +
              entry("e", bytes({"12345678"})) + entry("l", whole_numbers({3})));
  const auto messages = try_mutations(fuzz::check_example, {message}, {entry("c", steps({bytes({"xy", "zw"})}))}, 3000);
  CHECK(messages.accepted > 30);
  CHECK(messages.rejected > 500);
  const temporary_folder folder;
  muster::data::detail::manifest_file file(muster::data::detail::path_of_manifest(folder / ""), true);
  for (std::uint64_t k = 0; k < 3; ++k) file.append(std::vector<muster::data::manifest_entry>{{"file", k, k, k}});
  CHECK(try_mutations(fuzz::check_statistics,
                      {R"({"records":2,"left_out":1,"label":[2,0.5,0.5,0.0,1.0],"columns":[[2,3.25,0.125,3.0,3.5]],)"
                       R"("histogram":[[0.0,1],[1.0,1]]})"},
                      {",", "[", "null"}, 3000)
            .accepted > 0);
  const auto manifest = try_mutations(fuzz::check_manifest, {content_of(folder / "MANIFEST")}, {"\n", " "}, 3000);
  CHECK(manifest.accepted > 10);
  CHECK(manifest.rejected > 1000);
}

TEST_CASE("no bytes make the reader of records crash, not even with checksums that are right") {
  const temporary_folder folder;
  muster::random_stream random(seed);
  std::vector<std::string> seeds;
  for (const auto form : {muster::data::record_form::fixed, muster::data::record_form::bytes}) {
    write_file(folder / "file", schema_of(form), random_records(random, schema_of(form), 3));
    seeds.push_back(content_of(folder / "file"));
  }
  int made_right = 0;
  const auto check = [&](std::string text) {
    // Sometimes the checksums of footer and tables are corrected, so that later checks are reached.
    if (text.size() > 4096 + 64 && random.below(4) != 0) {
      const std::size_t footer = text.size() - 64;
      const auto crc_of = [&](std::size_t first, std::size_t last) {
        return little_endian(muster::crc32c(std::as_bytes(std::span(text).subspan(first, last - first))), 4);
      };
      text.replace(footer + 40, 8, little_endian(text.size(), 8));
      std::uint64_t payload[2];
      std::memcpy(payload, text.data() + footer + 8, sizeof payload);
      const std::uint64_t tables = (payload[0] + payload[1] + 63) / 64 * 64;
      if (tables <= footer) text.replace(footer + 48, 4, crc_of(tables, footer));
      text.replace(footer + 52, 4, crc_of(footer, footer + 52));
      ++made_right;
    }
    std::filesystem::remove(folder / "mutated");
    return fuzz::check_records(text, folder.write("mutated", text.empty() ? "x" : text));
  };
  const auto found = try_mutations(check, seeds, {little_endian(0, 8), little_endian(~std::uint64_t{0}, 8)}, 1500);
  CHECK(found.accepted > 20);
  CHECK(found.rejected > 500);
  CHECK(made_right > 500);
}
