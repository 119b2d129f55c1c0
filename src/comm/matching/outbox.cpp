#include "outbox.hpp"

namespace muster { inline namespace v0 { namespace detail {

void outbox::announce(std::uint64_t number) {
  request& r = *queue_.front();
  announced_.emplace(number, &r);
  progress_of(r).number = number;
  pop();
}

const char* outbox::clear(std::uint64_t number) {
  const auto found = announced_.find(number);
  if (found == announced_.end()) return "it sent a clear-to-send for a message that was not announced";
  push(*found->second);
  announced_.erase(found);
  return nullptr;
}

void outbox::finish(request& r) noexcept {
  if (progress_of(r).group != nullptr) return detail::finish(r);
  adopted_.remove_if([&](const copy& adopted) { return &adopted.r == &r; });
}

request* outbox::adopt(request& r) noexcept {
  std::list<copy> adopted;
  try {
    adopted.emplace_back().bytes.assign(r.data, r.data + r.bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  copy& replacement = adopted.front();
  request& own = replacement.r;
  own.data = replacement.bytes.data();
  own.bytes = r.bytes;
  own.peer = r.peer;
  own.tag = r.tag;
  own.signature = r.signature;
  own.state = r.state;
  ::new (own.transport_storage) message_progress(progress_of(r));
  progress_of(own).group = nullptr;
  queue_.replace(r, own);
  for (auto& entry : announced_) {
    if (entry.second == &r) entry.second = &own;
  }
  adopted_.splice(adopted_.end(), adopted);
  return &own;
}

void outbox::drop(const request& r) noexcept {
  queue_.remove(r);
  std::erase_if(announced_, [&](const auto& entry) { return entry.second == &r; });
}

}}}  // namespace muster::v0::detail
