// The file through which clients find a store.
#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/error.hpp>

#include <muster/comm/net/socket.hpp>
#include "catch.hpp"
#include "places.hpp"
#include "worker.hpp"

namespace fs = std::filesystem;
using muster::store_server;
using muster::tcp_store;
using muster::detail::address;
using muster::detail::probe_store;
using muster::detail::read_store_file;
using muster::detail::store_place;
using muster::detail::store_presence;
using places::soon;

namespace {

auto at_once() { return muster::deadline_after(muster::seconds(0.1)); }

class temporary_file {
 public:
  temporary_file() {
    std::string name = (fs::temp_directory_path() / "muster-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { fs::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return folder_ / "store"; }
  [[nodiscard]] std::string where() const { return "file:" + path(); }

 private:
  fs::path folder_;
};

}  // namespace

TEST_CASE("a store is found through the file that its server announced, which has the token and goes with it") {
  const temporary_file file;
  std::optional<store_server> server(std::in_place, "127.0.0.1:0", "a secret with spaces");
  server->announce(file.path());
  CHECK((fs::status(file.path()).permissions() & fs::perms::all) == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(read_store_file(file.path()) == store_place{{address::parse(server->address())}, "a secret with spaces"});
  {
    tcp_store store(file.where(), "", soon());
    CHECK(store.where() == file.where());
    CHECK(store.is_served_here());
    CHECK(store.compare_and_swap("key", 0, "value", soon()).swapped);
  }
  server.reset();
  CHECK_FALSE(fs::exists(file.path()));

  // A store that listens at all addresses announces the addresses that reach beyond this host, with the port that the
  // system chose.
  server.emplace(":0", "");
  server->announce(file.path());
  for (const auto& announced : read_store_file(file.path()).addresses) CHECK(announced.port() == server->port());
  CHECK_FALSE(tcp_store(file.where(), "", soon()).get("key", soon()));
  store_server other("127.0.0.1:0", "other");
  other.announce(file.path());
  server.reset();
  CHECK(read_store_file(file.path()).token == "other");  // the file belongs to the other store now
}

TEST_CASE("a client waits for the file, and passes over one of a store that is gone") {
  const temporary_file file;
  CHECK_THROWS_AS(tcp_store(file.where(), "", at_once()), muster::timeout_error);
  CHECK_THROWS_WITH(tcp_store(file.where(), "", at_once()),
                    contains("no store at " + file.where() + " answered in time (") && contains("No such file") &&
                        contains("remove the file if its job has ended"));
  const store_server of_another("127.0.0.1:0", "another");
  std::string refused;
  { refused = store_server("127.0.0.1:0", "").address(); }
  // A store that has ended, and a store whose port another job's store now uses.
  for (const auto& stale : {refused, of_another.address()}) {
    CAPTURE(stale);
    const store_place place{{address::parse(stale)}, "of the job before"};
    muster::detail::write_store_file(file.path(), place);
    CHECK(probe_store(place) == store_presence::gone);
    CHECK_THROWS_AS(tcp_store(file.where(), "", at_once()), muster::timeout_error);
    std::optional<store_server> server;
    std::jthread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      server.emplace("127.0.0.1:0", "of this job").announce(file.path());
    });
    tcp_store store(file.where(), "", soon());
    CHECK_FALSE(store.get("key", soon()));
    later.join();
    CHECK(probe_store(read_store_file(file.path())) == store_presence::serves);
    server.reset();
  }
}

TEST_CASE("a client that waits for the file of a store ends at once with the reason why there is none") {
  const temporary_file file;
  std::jthread rank_0(
      [&] { muster::detail::report_by_store_file(file.path(), "muster-store cannot be started (why)"); });
  CHECK_THROWS_WITH(tcp_store(file.where(), "", soon()), contains("muster-store cannot be started (why)"));
  rank_0.join();
  CHECK_THROWS_AS(tcp_store(file.where(), "", at_once()), muster::timeout_error);
}

TEST_CASE("to look for a store leaves no client there") {
  store_server server("127.0.0.1:0", "t");
  const store_place place{{address::parse(server.address())}, "t"};
  CHECK(probe_store(place) == store_presence::serves);
  CHECK(server.connection_counts().present == 0);
}

TEST_CASE("a store that is stopped is silent, and not gone") {
  std::string where;
  { where = store_server("127.0.0.1:0", "").address(); }
  places::place served("tcp");
  served.words = {"tcp", where, "t"};
  places::worker server(served, {"serve"});
  CHECK_FALSE(tcp_store(where, "t", soon()).get("key", soon()));
  server.stop();
  const auto stopped = address::parse(where);
  CHECK(probe_store({{stopped}, "t"}) == store_presence::silent);
  // Among several addresses, an address that refuses proves nothing: on another host it may belong to another host.
  CHECK(probe_store({{stopped, address::parse("127.0.0.1:1")}, "t"}) == store_presence::silent);
  server.send(SIGCONT);
  CHECK(probe_store({{address::parse("127.0.0.1:1"), stopped}, "t"}) == store_presence::serves);
}

TEST_CASE("a client that connects again through the file finds that another store was begun instead") {
  const temporary_file file;
  std::optional<store_server> server(std::in_place, "127.0.0.1:0", "first");
  server->announce(file.path());
  tcp_store store(file.where(), "", soon(), nullptr, muster::when_lost::connect_again);
  REQUIRE(store.compare_and_swap("key", 0, "value", soon()).swapped);
  server.reset();
  CHECK_THROWS_AS(store.get("key", at_once()), muster::error);
  CHECK_THROWS_AS(store.get("key", at_once()), muster::timeout_error);
  server.emplace("127.0.0.1:0", "second").announce(file.path());
  CHECK_THROWS_AS(store.get("key", soon()), muster::store_left_behind);
}

TEST_CASE("what is no file of a store, or another's, is neither believed nor waited for") {
  const temporary_file file;
  const auto refuse = [&](const std::string& why) {
    CHECK_THROWS_WITH(read_store_file(file.path()), contains(file.path() + ": ") && contains(why));
    CHECK_THROWS_AS(tcp_store(file.where(), "", at_once()), muster::timeout_error);
    fs::remove(file.path());
  };
  for (const std::string text :
       {"", "x", "muster-store-1 ", "muster-store-1 \n", "muster-store-1  token\n", "muster-store-1 host:1 token\n",
        "muster-store-2 127.0.0.1:1 token\n", "muster-store-1 127.0.0.1:1 token"}) {
    CAPTURE(text);
    std::ofstream(file.path()) << text;
    refuse("has no address of a store");
  }
  std::ofstream(file.path()) << std::string(100000, 'x');
  refuse("has no address of a store");
  REQUIRE(::mkfifo(file.path().c_str(), 0600) == 0);
  refuse("not a regular file that only this user can write");
  std::ofstream(file.path()) << "muster-store-1 127.0.0.1:1 token\n";
  REQUIRE(::chmod(file.path().c_str(), 0666) == 0);
  refuse("not a regular file that only this user can write");
  fs::create_symlink("/etc/hostname", file.path());
  refuse("symbolic links");
  if (::geteuid() == 0) {
    std::ofstream(file.path()) << "muster-store-1 127.0.0.1:1 token\n";
    REQUIRE(::chown(file.path().c_str(), 12345, 12345) == 0);
    refuse("not a regular file that only this user can write");
  }
  fs::create_directory(file.path());
  store_server server("127.0.0.1:0", "");
  CHECK_THROWS_AS(server.announce(file.path()), muster::configuration_error);
}
