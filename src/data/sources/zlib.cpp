// The gzip decoder of mapped_file, in a separate library so that the core does not depend on zlib.
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include <zlib.h>

#include <muster/core/error.hpp>
#include <muster/core/plugin.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data { namespace {

struct inflater {
  explicit inflater(const std::string& path) {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) {  // the largest window, gzip framing only
      throw data_error({path}, "cannot be decompressed (zlib did not start); check free memory");
    }
  }
  ~inflater() { inflateEnd(&stream); }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;
  z_stream stream{};
};

// Decodes a gzip file, which has one or more members, one after another (bgzip and `cat a.gz b.gz` write several).
void decode_gzip(std::string_view compressed, const std::string& path, const detail::text_sink& sink) {
  constexpr std::size_t most = std::numeric_limits<uInt>::max();
  inflater zlib(path);
  z_stream& stream = zlib.stream;
  std::vector<char> plain(detail::decoded_piece_bytes);
  const char* next = compressed.data();
  const char* const end = next + compressed.size();
  for (;;) {
    stream.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(next));  // zlib only reads the bytes; the C type predates const
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(static_cast<std::size_t>(end - next), most));
    stream.next_out = reinterpret_cast<Bytef*>(plain.data());
    stream.avail_out = static_cast<uInt>(plain.size());
    const int code = inflate(&stream, Z_NO_FLUSH);
    if (code == Z_OK || code == Z_STREAM_END) sink(std::span(plain).first(plain.size() - stream.avail_out));
    next = reinterpret_cast<const char*>(stream.next_in);
    if (code == Z_STREAM_END) {
      if (std::all_of(next, end, [](char c) { return c == '\0'; })) break;  // some tools pad with zeros
      inflateReset(&stream);
    } else if (code == Z_BUF_ERROR || (code == Z_OK && next == end && stream.avail_out > 0)) {
      throw data_error({path}, "ends in the middle of its gzip data (it was cut short); copy or download it again");
    } else if (code != Z_OK) {
      throw data_error({path}, "is not valid gzip data (" +
                                   std::string(stream.msg != nullptr ? stream.msg : "corrupt") + " near byte " +
                                   std::to_string(next - compressed.data()) + "); copy or download it again");
    }
  }
}

}  // namespace

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 { namespace detail {

extern const plugin zlib_plugin;
[[gnu::init_priority(101)]] const plugin zlib_plugin("zlib", [] { data::detail::set_gzip_decoder(data::decode_gzip); });

}}}  // namespace muster::v0::detail
