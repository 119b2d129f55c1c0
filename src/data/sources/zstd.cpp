// Zstandard for files and for the blocks of records, in a separate library so that the core does not depend on libzstd.
#include <memory>
#include <span>
#include <vector>

#include <zstd.h>

#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/plugin.hpp>
#include <muster/data/records/layout.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data { namespace {

using decompressor = std::unique_ptr<ZSTD_DCtx, muster::detail::freed_by<&ZSTD_freeDCtx>>;

// Decodes a Zstandard file, which has one or more frames, one after another (pzstd and `cat a.zst b.zst` write
// several).
void decode_zstd(std::string_view compressed, const std::string& path, const detail::text_sink& sink) {
  const decompressor context(ZSTD_createDCtx());
  if (context == nullptr) {
    throw data_error({path}, "cannot be decompressed (libzstd did not start); check free memory");
  }
  std::vector<char> plain(detail::decoded_piece_bytes);
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  std::size_t expected = 0;  // number of bytes that libzstd expects next; 0 at the end of a frame
  for (ZSTD_outBuffer out{plain.data(), plain.size(), 0};; out.pos = 0) {
    expected = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(expected) != 0) {
      throw data_error(
          {path, 0, 0, in.pos},
          "is not valid Zstandard data (" + std::string(ZSTD_getErrorName(expected)) + "); copy or download it again");
    }
    sink(std::span(plain).first(out.pos));
    if (in.pos == in.size && (expected == 0 || out.pos < out.size)) break;
  }
  if (expected != 0) {
    throw data_error({path}, "ends in the middle of its Zstandard data (it was cut short); copy or download it again");
  }
}

std::vector<std::byte> compress(std::span<const std::byte> raw, int level) {
  std::vector<std::byte> compressed(ZSTD_compressBound(raw.size()));
  const std::size_t size = ZSTD_compress(compressed.data(), compressed.size(), raw.data(), raw.size(), level);
  if (ZSTD_isError(size) != 0) {
    throw configuration_error("a block cannot be compressed (" + std::string(ZSTD_getErrorName(size)) +
                              "); check free memory and the level");
  }
  compressed.resize(size);
  return compressed;
}

bool decompress(std::span<const std::byte> compressed, std::span<std::byte> raw) noexcept {
  // Each thread keeps a context, because creating a context takes longer than decoding a small block.
  thread_local const decompressor context(ZSTD_createDCtx());
  if (context == nullptr) return false;
  const std::size_t size =
      ZSTD_decompressDCtx(context.get(), raw.data(), raw.size(), compressed.data(), compressed.size());
  return ZSTD_isError(size) == 0 && size == raw.size();
}

constexpr detail::records::block_codec codec{compress, decompress};

}  // namespace

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 { namespace detail {

extern const plugin zstd_plugin;
[[gnu::init_priority(101)]] const plugin zstd_plugin("zstd", [] {
  data::detail::set_zstd_decoder(data::decode_zstd);
  data::detail::records::set_block_codec(&data::codec);
});

}}}  // namespace muster::v0::detail
