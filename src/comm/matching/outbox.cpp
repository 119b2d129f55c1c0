#include "outbox.hpp"

namespace muster { inline namespace v0 { namespace detail {

void outbox::announce(std::uint64_t number) {
  request& req = *queue_.front();
  announced_.emplace(number, &req);
  progress_of(req).number = number;
  pop();
}

const char* outbox::on_clear_to_send(std::uint64_t number) {
  const auto found = announced_.find(number);
  if (found == announced_.end()) return "it sent a clear-to-send for a message that was not announced";
  push(*found->second);
  announced_.erase(found);
  return nullptr;
}

void outbox::finish(request& req) noexcept {
  if (progress_of(req).group != nullptr) return detail::finish(req);
  adopted_.remove_if([&](const copy& adopted) { return &adopted.r == &req; });
}

request* outbox::adopt(request& req) noexcept {
  std::list<copy> adopted;
  try {
    adopted.emplace_back().bytes.assign(req.data, req.data + req.bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  copy& replacement = adopted.front();
  request& own = replacement.r;
  own.data = replacement.bytes.data();
  own.bytes = req.bytes;
  own.peer = req.peer;
  own.tag = req.tag;
  own.signature = req.signature;
  own.state = req.state;
  ::new (own.transport_storage) message_progress(progress_of(req));
  progress_of(own).group = nullptr;
  queue_.replace(req, own);
  for (auto& entry : announced_) {
    if (entry.second == &req) entry.second = &own;
  }
  adopted_.splice(adopted_.end(), adopted);
  return &own;
}

void outbox::drop(const request& req) noexcept {
  queue_.remove(req);
  std::erase_if(announced_, [&](const auto& entry) { return entry.second == &req; });
}

}}}  // namespace muster::v0::detail
