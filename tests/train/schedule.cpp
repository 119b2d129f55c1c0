#include <muster/train/schedule.hpp>

#include <cmath>

#include <muster/core/error.hpp>

#include "catch.hpp"

namespace {

double at_epoch(const muster::schedule& schedule, double epoch) { return schedule({.step = 0, .epoch = epoch}); }

std::string refusal(std::string_view text) {
  try {
    (void)muster::parse_schedule(text);
  } catch (const muster::configuration_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the constant schedule is constant") {
  const auto schedule = muster::parse_schedule("constant:0.25");
  CHECK(schedule({.step = 0, .epoch = 0}) == 0.25);
  CHECK(schedule({.step = 100000, .epoch = 17.5}) == 0.25);
}

TEST_CASE("alpha / sqrt(t) counts t from 1") {
  const auto schedule = muster::parse_schedule("inverse-sqrt:200");
  CHECK(schedule({.step = 0, .epoch = 0}) == 200.0);
  CHECK(schedule({.step = 3, .epoch = 0}) == 100.0);
  CHECK(schedule({.step = 9999, .epoch = 5}) == 2.0);
}

TEST_CASE("the step schedule warms up to the scaled rate and falls at its milestones") {
  const auto schedule = muster::parse_schedule("step:0.1,epochs=30+60+80,warmup=5,scale=32");
  CHECK(at_epoch(schedule, 0) == Approx(0.1));
  CHECK(at_epoch(schedule, 2.5) == Approx((0.1 + 3.2) / 2));
  CHECK(at_epoch(schedule, 5) == Approx(3.2));
  CHECK(at_epoch(schedule, 29.999) == Approx(3.2));
  CHECK(at_epoch(schedule, 30) == Approx(0.32));
  CHECK(at_epoch(schedule, 60) == Approx(0.032));
  CHECK(at_epoch(schedule, 1e6) == Approx(0.0032));

  const auto plain = muster::parse_schedule("step:0.1,factor=0.5,epochs=82+109");
  CHECK(at_epoch(plain, 0) == Approx(0.1));
  CHECK(at_epoch(plain, 82) == Approx(0.05));
  CHECK(at_epoch(plain, 200) == Approx(0.025));
  CHECK(at_epoch(muster::parse_schedule("step:0.5"), 1000) == Approx(0.5));
}

TEST_CASE("any function of the position is a schedule") {
  const muster::schedule schedule = [](const muster::training_position& at) { return 1.0 / (1.0 + at.epoch); };
  const muster::schedule copy = schedule;
  CHECK(copy({.step = 7, .epoch = 1}) == 0.5);
  CHECK(muster::schedule(muster::constant_rate{2})({}) == 2.0);
}

TEST_CASE("a schedule that cannot be read is refused with its text, the fault and a way out") {
  const auto text = GENERATE("", "constant", "constant:", "constant:x", "constant:0", "constant:-1", "constant:nan",
                             "constant:1e999", "constant:0.1,factor=2", "konstant:0.1", "step:0.1,epochs=30+20",
                             "step:0.1,epochs=", "step:0.1,epochs=30++40", "step:0.1,factor=0", "step:0.1,scale=-4",
                             "step:0.1,warmup=-1", "step:0.1,warmup", "step:0.1,gamma=0.1",
                             "step:0.1,factor=1,factor=1", "inverse-sqrt:0", "inverse-sqrt:1 ");
  CAPTURE(text);
  const std::string said = refusal(text);
  CHECK(said.starts_with("schedule '" + std::string(text) + "' cannot be used ("));
  CHECK(said.find("); ") != std::string::npos);
  CHECK(said.find('\n') == std::string::npos);
}

TEST_CASE("a typo in a schedule is recognised") {
  CHECK(refusal("konstant:0.1").find("did you mean 'constant'?") != std::string::npos);
  CHECK(refusal("step:0.1,epoch=3").find("did you mean 'epochs'?") != std::string::npos);
}
