// How programs write what they found: as JSON, or as lines of text.
#pragma once

#include <nlohmann/json.hpp>

using json = nlohmann::ordered_json;

/// Prints an object: one of JSON, or a line for each of its members and of theirs.
void show(const json& report, bool as_json);
