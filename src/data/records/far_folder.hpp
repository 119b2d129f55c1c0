// The files of a folder on a server, as readers see them; private to muster's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Bytes [begin, begin + size) of a file that was added to a folder.
struct far_part {
  std::size_t file;
  std::uint64_t begin;
  std::uint64_t size;
};

/// A file as it lies on the server.
struct far_file {
  std::size_t number;
  std::uint64_t size;
  std::optional<std::uint64_t> version;  ///< a digest of it; nothing: the server tells no version that can be trusted
};

/// Any thread may call any function. What waits for the server throws data_error with the file's address: at once where
/// the server refuses it, after http_options::timeout where it does not answer.
class far_folder {
 public:
  using bytes = std::shared_ptr<const std::vector<std::byte>>;

  virtual ~far_folder() = default;
  /// A small file, as it is now.
  [[nodiscard]] virtual std::string text(const std::string& name) = 0;
  /// Knows the file of so many bytes from now on, by the number returned. `content` tells it from others in the cache.
  [[nodiscard]] virtual std::size_t add(const std::string& name, std::uint64_t size, std::uint64_t content) = 0;
  /// Asks the server for a file and adds it; its version there tells it from others. Without one that can be trusted it
  /// is fetched each time, and the cache has it for this process alone. All of it has room on the disk, so
  /// that its parts lie one behind another. Throws data_error where it is not there, is empty or has no room.
  [[nodiscard]] virtual far_file find(const std::string& name) = 0;
  /// These parts will be wanted, and come meanwhile.
  virtual void expect(std::span<const far_part> parts) = 0;
  /// A part, which is waited for. It stays as long as this folder and `held`, which has it where the disk has not.
  [[nodiscard]] virtual const std::byte* view(const far_part& part, bytes& held) = 0;
};

using far_opener = std::shared_ptr<far_folder> (*)(const std::string& address, const http_options& options);
/// Sets what opens addresses, where muster::http is linked. Thread safe.
void set_far_opener(far_opener opener) noexcept;
/// Null for a path that is no address. A folder that is open already is shared, with its requests and its bytes of the
/// disk. Throws configuration_error for an address where muster::http is not linked.
[[nodiscard]] std::shared_ptr<far_folder> open_far(const std::string& path, const http_options& options);

}}}  // namespace muster::v0::detail
