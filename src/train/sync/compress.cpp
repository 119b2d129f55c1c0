#include <muster/train/sync/compress.hpp>

#include <memory>

#include <muster/ps/settings.hpp>

#include "powersgd_reducer.hpp"
#include "span_reducer.hpp"

namespace muster::inline v0 {

bucket_codec compress(const compression& how, const compress_options& options) {
  if (how.method == compression_method::none) return no_codec;
  if (how.method == compression_method::powersgd)
    return bucket_codec(std::make_shared<detail::powersgd_reducer>(how.rank, options));
  return bucket_codec(std::make_shared<detail::span_reducer>(how, options));
}

bucket_codec compress(std::string_view how, const compress_options& options) {
  return compress(parse_compression(how), options);
}

bucket_codec compress(const settings& chosen, const compress_options& options) {
  return compress(chosen.value(setting::compress), options);
}

}  // namespace muster::inline v0
