#include <muster/comm/rendezvous/file_store.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "places.hpp"
#include "worker.hpp"

namespace fs = std::filesystem;
using muster::file_store;
using places::place;
using places::soon;

TEST_CASE("a folder that nobody has open begins with nothing, and the last one leaves nothing") {
  const place at("file");
  const fs::path folder = at.words[1];
  {
    file_store first(folder.string(), soon());
    CHECK(first.compare_and_swap("key", 0, "value", soon()).swapped);
    std::optional<file_store> second(std::in_place, folder.string(), soon());
    CHECK(second->get("key", soon()).value == "value");
    second.reset();
    CHECK(first.get("key", soon()).value == "value");  // it was not the last
    CHECK((fs::status(folder).permissions() & fs::perms::others_all) == fs::perms::none);
  }
  CHECK_FALSE(fs::exists(folder));

  // What a job leaves that was killed as a whole.
  {
    places::worker killed(at, {"hold", "key", "3000"});
    file_store watching(folder.string(), soon());
    REQUIRE(watching.watch("key", 0, soon()));
  }
  fs::create_directory(folder);
  for (const char* name : {"k-key", "l-0000000000000007", "new"}) std::ofstream(folder / name) << "left over";
  {
    file_store next(folder.string(), soon());
    CHECK_FALSE(next.get("key", soon()));
  }
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("a file that is not the store's is told apart and left alone") {
  const place at("file");
  const fs::path folder = at.words[1];
  {
    file_store store(folder.string(), soon());
    std::ofstream(folder / "notes.txt") << "mine";
    std::ofstream(folder / "k-key") << "not an entry";
    CHECK_THROWS_WITH(store.get("key", soon()), contains("k-key' is no entry of a store"));
    CHECK_THROWS_AS(store.compare_and_swap("key", 0, "value", soon()), muster::error);
    CHECK(store.compare_and_swap("other", 0, "value", soon()).swapped);
  }
  CHECK(fs::exists(folder / "notes.txt"));
  CHECK_FALSE(fs::exists(folder / "k-other"));
}

TEST_CASE("a folder that cannot hold a store is refused") {
  const place at("file");
  const auto refuse = [](const std::string& folder) {
    CAPTURE(folder);
    CHECK_THROWS_AS(file_store(folder, soon()), muster::configuration_error);
    CHECK_THROWS_WITH(file_store(folder, soon()), contains("the folder '" + folder + "' cannot hold a store ("));
  };
  refuse("");
  refuse((at.folder / "none" / "store").string());
  std::ofstream(at.folder / "file") << "x";
  refuse((at.folder / "file").string());
  refuse("/proc/store");
}

TEST_CASE("a file store that somebody holds locked times out, and names itself") {
  const place at("file");
  file_store store(at.words[1], soon());
  // As a process that stopped in the middle of a write would hold it.
  const int file = ::open((at.words[1] + "/revision").c_str(), O_RDWR | O_CLOEXEC);
  struct flock wanted {};
  wanted.l_type = F_WRLCK;
  wanted.l_len = 1;
  REQUIRE(::fcntl(file, F_OFD_SETLK, &wanted) == 0);
  const auto shortly = [] { return muster::deadline_after(muster::seconds(0.05)); };
  CHECK_THROWS_AS(store.compare_and_swap("key", 0, "value", shortly()), muster::timeout_error);
  CHECK_THROWS_WITH(store.compare_and_swap("key", 0, "value", shortly()), contains("file:" + at.words[1]));
  CHECK_THROWS_AS(store.lease(muster::seconds(1), shortly()), muster::timeout_error);
  CHECK_FALSE(store.get("key", shortly()));  // readers wait for nobody
  ::close(file);
  CHECK(store.compare_and_swap("key", 0, "value", soon()).swapped);
}
