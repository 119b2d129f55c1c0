// Numbers in and out of bytes, bounded: what is read is believed by nobody before it is.
#pragma once

#include "../core/wire.hpp"

namespace muster::inline v0::ps::detail {

using byte_writer = muster::detail::wire_writer;
using byte_reader = muster::detail::wire_reader;

}  // namespace muster::inline v0::ps::detail
