// Some ranks of a transport, as if there were no others.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include <muster/comm/any_transport.hpp>

namespace muster::inline v0::detail {

/// What an algorithm needs of a transport, among the members alone and in their order, which is ascending. Messages and
/// errors are those of the whole, which counts the ranks its own way.
class part_of_transport {
 public:
  /// `rank` is this rank's number among `members`.
  part_of_transport(any_transport& whole, std::vector<int> members, int rank)
      : whole_(whole), members_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] transport_abilities abilities() const { return whole_.abilities(); }
  void send(request& r) { whole_.send(to_whole(r)); }
  void receive(request& r) { whole_.receive(to_whole(r)); }
  bool test(request& r) { return whole_.test(r); }
  bool native(const native_call&, request&) { return false; }

 private:
  request& to_whole(request& r) {
    r.peer = members_[static_cast<std::size_t>(r.peer)];
    return r;
  }

  any_transport& whole_;
  std::vector<int> members_;
  int rank_;
};

}  // namespace muster::inline v0::detail
