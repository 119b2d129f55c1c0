// Stores of every kind to test, here and in other processes.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/rendezvous/file_store.hpp>
#include <muster/comm/rendezvous/store.hpp>

#ifdef MUSTER_HAS_TCP
#include <muster/comm/tcp/store.hpp>
#endif

namespace places {

using muster::any_store;
using muster::deadline_after;
using muster::seconds;

/// Long enough on any machine, for what is not to be waited for.
inline auto soon() { return deadline_after(seconds(60)); }

/// A store from the words that `place::words` gives: "file FOLDER" or "tcp ADDRESS TOKEN".
inline any_store open(const std::vector<std::string>& words) {
  if (words.at(0) == "file") return any_store(std::make_unique<muster::file_store>(words.at(1), soon()));
#ifdef MUSTER_HAS_TCP
  if (words.at(0) == "tcp") {
    return any_store(std::make_unique<muster::tcp_store>(words.at(1), words.at(2), soon()));
  }
#endif
  throw std::invalid_argument("no such store: " + words.at(0));
}

/// Where a store is while this lives.
struct place {
  explicit place(const std::string& kind) {
    if (kind == "file") {
      std::string name = (std::filesystem::temp_directory_path() / "muster-test-XXXXXX").string();
      folder = mkdtemp(name.data());
      words = {"file", (folder / "store").string()};
    }
#ifdef MUSTER_HAS_TCP
    if (kind == "tcp") {
      server = std::make_unique<muster::store_server>("127.0.0.1:0", "a secret");
      words = {"tcp", server->address(), "a secret"};
    }
#endif
  }
  place(const place&) = delete;
  place& operator=(const place&) = delete;
  ~place() {
    if (!folder.empty()) std::filesystem::remove_all(folder);
  }
  [[nodiscard]] any_store open() const { return places::open(words); }

  std::vector<std::string> words;
  std::filesystem::path folder;
#ifdef MUSTER_HAS_TCP
  std::unique_ptr<muster::store_server> server;
#endif
};

inline std::vector<std::string> kinds() {
#ifdef MUSTER_HAS_TCP
  return {"file", "tcp"};
#else
  return {"file"};
#endif
}

}  // namespace places
