// Where ranks write down their last calls when they wait in vain.
#pragma once

#include <cstdint>
#include <string>

namespace muster::inline v0::detail {

/// The folder of the records of this process, as `--flight-recorder` names it; none as long as it is empty.
void set_flight_record_folder(const std::string& folder);
[[nodiscard]] bool has_flight_record_folder() noexcept;

/// How often records were asked for, by SIGUSR2: which does that where there is a folder, and the program has no
/// handler of its own.
[[nodiscard]] std::uint32_t flight_records_asked_for() noexcept;

/// Writes the record of the rank of that number, whole or not at all, over an earlier one. What keeps it from that the
/// log says.
void write_flight_record(int rank, const std::string& text) noexcept;

}  // namespace muster::inline v0::detail
