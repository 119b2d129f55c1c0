#include <muster/data/open.hpp>

#include <muster/core/error.hpp>
#include "catch.hpp"
#include "files.hpp"

TEST_CASE("a source is opened by its specification, with the options passed on") {
  const temporary_folder folder;
  const std::string path = folder.write("with:colon", "+1 1:1 2:1\n-1 2:3\n");
  const auto opened = muster::open_dataset("libsvm:" + path, {.layout = muster::layout::sparse, .min_features = 9});
  CHECK(opened.size() == 2);
  CHECK(opened.features() == 9);
  CHECK(opened.is_sparse());
  CHECK(opened.name() == "libsvm:" + path);
  CHECK_THROWS_AS(muster::open_dataset("libsvm:" + (folder / "missing")), muster::data_error);
}

TEST_CASE("a specification that is none, or of an unknown kind, is refused with what would do") {
  for (const char* wrong : {"", "a9a", "/data/a9a", ":a9a", "libsvm:", "csv:a9a", "libsvn:a9a"}) {
    CAPTURE(std::string(wrong));
    CHECK_THROWS_AS(muster::open_dataset(wrong), muster::configuration_error);
  }
  CHECK_THROWS_WITH(muster::open_dataset("a9a"), contains("write libsvm:a9a"));
  CHECK_THROWS_WITH(muster::open_dataset(":a9a"), contains("write libsvm:a9a"));
  CHECK_THROWS_WITH(muster::open_dataset("libsvm:"), contains("write libsvm:PATH"));
  CHECK_THROWS_WITH(muster::open_dataset("csv:a9a"), contains("unknown source 'csv' in 'csv:a9a' (known: libsvm)"));
  CHECK_THROWS_WITH(muster::open_dataset("libsvn:a9a"), contains("did you mean libsvm?"));
}

TEST_CASE("every source of the table is known") {
  for (const auto& source : muster::source_table()) {
    CHECK_THROWS_AS(muster::open_dataset(std::string(source.scheme) + ":/missing"), muster::data_error);
    CHECK_FALSE(source.help.empty());
  }
}
