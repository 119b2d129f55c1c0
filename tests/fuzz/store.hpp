// Properties of the store's server and client for any input bytes; used by the fuzzer and by test_net.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_table.hpp>

namespace fuzz {

using namespace muster::detail;

inline void require_of_store(bool holds, const char* property) {
  if (!holds) throw std::logic_error(property);
}

/// A store for ten keys, in which every lookup is a linear search.
class naive_store {
 public:
  using answer = std::tuple<store_table::client, std::uint64_t, store_status, std::uint64_t, std::string>;
  std::vector<answer> answers;

  bool handle(store_table::client from, const store_request& asked) {
    const std::string key(asked.key);
    const bool there = items_.contains(key);
    const std::uint64_t version = there ? items_[key].version : 0;
    const std::string value = there ? items_[key].value : "";
    switch (asked.call) {
      case store_call::get:
        reply(from, asked.id, store_status::done, version, value);
        break;
      case store_call::open: {
        auto& identity = items_[std::string(store_identity_key)];
        if (identity.version == 0) {
          identity = {"the only one", ++last_version_, 0};
          wake(std::string(store_identity_key));
        }
        reply(from, asked.id, store_status::done, identity.version, identity.value);
        break;
      }
      case store_call::swap:
        if (version != asked.version) {
          reply(from, asked.id, store_status::refused, version, value);
        } else if (!asked.value) {
          notify_watchers_of_removal(from, asked.id, key, there);
        } else {
          items_[key] = {std::string(*asked.value), ++last_version_,
                         asked.life == muster::store_life::of_client ? from : 0};
          reply(from, asked.id, store_status::done, last_version_, "");
          wake(key);
        }
        break;
      case store_call::watch:
        for (const auto& watch : watches_) {
          if (watch.watcher == from && watch.id == asked.id) return false;
        }
        if (version != asked.version) {
          reply(from, asked.id, store_status::done, version, value);
        } else {
          watches_.push_back({from, asked.id, key});
        }
        break;
      case store_call::leave:
        break;
      case store_call::cancel:
        std::erase_if(watches_, [&](const watching& watch) { return watch.watcher == from && watch.id == asked.id; });
        break;
    }
    return true;
  }

  void leave(store_table::client ended) {
    std::erase_if(watches_, [&](const watching& watch) { return watch.watcher == ended; });
    std::vector<std::string> keys;
    for (const auto& [key, entry] : items_) {
      if (entry.owner == ended) keys.push_back(key);
    }
    for (const auto& key : keys) {
      items_.erase(key);
      wake(key);
    }
  }

  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& [key, entry] : items_) sum += key.size() + entry.value.size();
    return sum;
  }

 private:
  struct item {
    std::string value;
    std::uint64_t version = 0;
    store_table::client owner = 0;
  };
  struct watching {
    store_table::client watcher = 0;
    std::uint64_t id = 0;
    std::string key;
  };

  void reply(store_table::client to, std::uint64_t id, store_status status, std::uint64_t number, std::string value) {
    answers.emplace_back(to, id, status, number, std::move(value));
  }

  // Notifies the watchers before the client that removed the key.
  void notify_watchers_of_removal(store_table::client from, std::uint64_t id, const std::string& key, bool there) {
    items_.erase(key);
    if (there) wake(key);
    reply(from, id, store_status::done, 0, "");
  }

  void wake(const std::string& key) {
    const auto found = items_.find(key);
    for (const auto& watch : watches_) {
      if (watch.key != key) continue;
      reply(watch.watcher, watch.id, store_status::done, found != items_.end() ? found->second.version : 0,
            found != items_.end() ? found->second.value : "");
    }
    std::erase_if(watches_, [&](const watching& watch) { return watch.key == key; });
  }

  std::map<std::string, item> items_;
  std::vector<watching> watches_;
  std::uint64_t last_version_ = 0;
};

/// Interprets the bytes as requests of three clients, one after the other. A frame that is no request ends its client.
/// The table must behave like the naive store. Throws std::logic_error when it does not; returns the number of
/// requests.
inline int check_store(std::string_view bytes) {
  naive_store expected;
  std::vector<naive_store::answer> answers;
  store_table table([&](store_table::client to, const store_reply& reply) {
    std::string framed;
    append_frame(framed, reply);
    const auto frame = first_frame(framed);
    const auto read = frame ? parse_reply(frame->body) : std::optional<store_reply>();
    require_of_store(read && frame->bytes == framed.size(), "an answer cannot be read");
    answers.emplace_back(to, read->id, read->status, read->version, std::string(read->value));
  });
  int requests = 0;
  std::map<store_table::client, int> lives;
  for (;;) {
    const auto frame = first_frame(bytes);
    for (std::size_t cut = 0; cut < std::min<std::size_t>(bytes.size(), 8); ++cut) {
      const auto part = first_frame(bytes.substr(0, cut));
      require_of_store(!part || part->bytes <= cut, "a frame is longer than its bytes");
    }
    if (!frame) break;
    const auto [length, body] = *frame;
    require_of_store(length <= bytes.size() && (body.empty() || body.size() + 4 == length), "a frame has a wrong size");
    bytes.remove_prefix(length);
    (void)parse_reply(body);
    const auto asked = parse_request(body);
    const store_table::client speaker = body.size() % 3;
    const store_table::client from = 1 + speaker + 3 * static_cast<unsigned>(lives[speaker]);
    bool good = false;
    if (asked) {
      ++requests;
      std::string again;
      append_frame(again, *asked);
      require_of_store(std::string_view(again).substr(4) == body, "encoding a request again gives other bytes");
      good = table.handle(from, *asked);
      require_of_store(good == expected.handle(from, *asked), "only one store rejects a request");
    }
    if (!good) {
      ++lives[speaker];
      table.leave(from);
      expected.leave(from);
    }
    require_of_store(answers == expected.answers, "the answers differ");
    require_of_store(table.bytes() == expected.bytes(), "the bytes are counted wrongly");
    answers.clear();
    expected.answers.clear();
  }
  return requests;
}

}  // namespace fuzz
