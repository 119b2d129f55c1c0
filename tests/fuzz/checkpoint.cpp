#include "checkpoint.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)fuzz::check_checkpoint(text);
  (void)fuzz::check_checkpoint(fuzz::sealed(text));
  return 0;
}
