// The output of the programs: JSON, or lines of text.
#pragma once

#include <nlohmann/json.hpp>

using json = nlohmann::ordered_json;

/// Prints an object: as JSON, or as a line for each member and its members.
void show(const json& report, bool as_json);
