#include <muster/core/base64.hpp>

#include <utility>

#include "catch.hpp"

TEST_CASE("base64 is written and taken as RFC 4648 has it") {
  for (const auto& [text, plain] : {std::pair("", ""),
                                    {"Zg==", "f"},
                                    {"aGk=", "hi"},
                                    {"Zm9v", "foo"},
                                    {"Zm9vYmFy", "foobar"},
                                    {"+/+/", "\xfb\xff\xbf"}}) {
    CHECK(muster::detail::from_base64(text) == plain);
    CHECK(muster::detail::to_base64(plain) == text);
  }
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg===", "====", "Z===", "Zh==", "Zm9=", "Zm 9v", "Zm9v\n", "Zg==Zg==", "-_-_"}) {
    INFO(text);
    CHECK(!muster::detail::from_base64(text));
  }
}
