#include <muster/train/optimizers/schedule.hpp>

#include <algorithm>
#include <cmath>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "train/reference/reference.hpp"

namespace {

double at_epoch(const muster::schedule& schedule, double epoch) { return schedule({.step = 0, .epoch = epoch}); }

std::string refusal_of_schedule(std::string_view text) {
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

TEST_CASE("schedules are where PyTorch's are") {
  const double metrics[] = {5.0, 4.0, 4.0, 4.0, 4.0, 3.9, 3.9, 3.9999, 3.9,
                            3.9, 3.9, 3.9, 2.0, 2.0, 2.0, 2.0, 2.0,    2.0};
  int compared = 0;
  for (const auto& [name, rates] : torch_reference()) {
    if (rates.size() == 6) continue;  // the line is about an optimizer
    CAPTURE(name);
    auto schedule = muster::parse_schedule(name);
    for (std::size_t epoch = 0; epoch < rates.size(); ++epoch) {
      CAPTURE(epoch);
      CHECK(at_epoch(schedule, static_cast<double>(epoch)) == Approx(rates[epoch]).epsilon(1e-9));
      schedule.observe(metrics[epoch]);
    }
    ++compared;
  }
  CHECK(compared == 8);
}

TEST_CASE("schedules end where they say, and count steps where there are no epochs") {
  const auto cosine = muster::parse_schedule("cosine:0.1,steps=1000,last=0.01");
  CHECK(cosine({.step = 0, .epoch = 0}) == Approx(0.1));
  CHECK(cosine({.step = 500, .epoch = 0}) == Approx(0.055));
  CHECK(cosine({.step = 1000, .epoch = 0}) == Approx(0.01));
  CHECK(cosine({.step = 99999, .epoch = 0}) == Approx(0.01));
  CHECK(at_epoch(muster::parse_schedule("polynomial:0.1,epochs=10"), 2.5) == Approx(0.075));
  CHECK(at_epoch(muster::parse_schedule("polynomial:0.1,epochs=10,last=0.02"), 40) == Approx(0.02));
  CHECK(at_epoch(muster::parse_schedule("exponential:0.1,factor=0.25,every=2"), 3) ==
        Approx(0.1 * std::pow(0.25, 1.5)));
}

TEST_CASE("any schedule warms up to a scaled rate") {
  const auto schedule = muster::parse_schedule("cosine:0.1,epochs=90,warmup=5,scale=8");
  CHECK(at_epoch(schedule, 0) == Approx(0.1));
  CHECK(at_epoch(schedule, 5) == Approx(0.8 * 0.5 * (1 + std::cos(3.14159265358979 * 5 / 90))));
  CHECK(at_epoch(schedule, 90) == Approx(0.0).margin(1e-12));
  CHECK(muster::parse_schedule("inverse-sqrt:1,scale=4")({.step = 3, .epoch = 0}) == Approx(2.0));
}

TEST_CASE("a plateau goes on from what its state says, and NaN is no progress") {
  auto first = muster::parse_schedule("plateau:0.1,factor=0.5,patience=1,warmup=2,scale=2");
  for (const double value : {3.0, 3.0, 3.0, 2.5, 2.6}) first.observe(value);
  auto second = muster::parse_schedule("plateau:0.1,factor=0.5,patience=1,warmup=2,scale=2");
  muster::state source(first), destination(second);
  REQUIRE(source.parts().size() == 1);
  std::ranges::copy(source.parts()[0].bytes, destination.parts()[0].bytes.begin());
  const auto copy = first;
  for (const double value : {2.7, 2.8, 2.9}) {
    CHECK(at_epoch(first, 3) == at_epoch(second, 3));
    first.observe(value);
    second.observe(value);
  }
  CHECK(at_epoch(first, 3) == Approx(0.2 * 0.125));
  CHECK(at_epoch(copy, 3) == Approx(0.2 * 0.5));  // a copy contains the observations before the copy only

  auto lost = muster::parse_schedule("plateau:1,factor=0.5,patience=0");
  lost.observe(std::nan(""));
  CHECK(at_epoch(lost, 0) == 0.5);
  lost.observe(7.0);
  CHECK(at_epoch(lost, 0) == 0.5);
}

TEST_CASE("any function of the position is a schedule") {
  const muster::schedule schedule = [](const muster::training_position& at) { return 1.0 / (1.0 + at.epoch); };
  const muster::schedule copy = schedule;
  CHECK(copy({.step = 7, .epoch = 1}) == 0.5);
  CHECK(muster::schedule(muster::plateau_rate{.rate = 2})({}) == 2.0);
}

TEST_CASE("a schedule that cannot be read is refused with its text, the fault and a way out") {
  const auto text =
      GENERATE("", "constant", "constant:", "constant:x", "constant:0", "constant:-1", "constant:nan", "constant:1e999",
               "constant:0.1,factor=2", "konstant:0.1", "step:0.1,epochs=30+20",
               "step:0.1,epochs=", "step:0.1,epochs=30++40", "step:0.1,factor=0", "step:0.1,scale=-4",
               "step:0.1,warmup=-1", "step:0.1,warmup", "step:0.1,gamma=0.1", "step:0.1,factor=1,factor=1",
               "cosine:0.1", "cosine:0.1,epochs=0", "cosine:0.1,epochs=9,steps=9", "polynomial:0.1,epochs=9,power=0",
               "exponential:0.1", "plateau:0.1,factor=1", "plateau:0.1,patience=1.5", "plateau:0.1,better=up",
               "plateau:0.1,cooldown=1e30", "constant:0.1,from=0.5", "inverse-sqrt:0", "inverse-sqrt:1 ");
  CAPTURE(text);
  const std::string message = refusal_of_schedule(text);
  CHECK(message.starts_with("schedule '" + std::string(text) + "' cannot be used ("));
  CHECK(message.find("); ") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("a typo in a schedule is recognised") {
  CHECK(refusal_of_schedule("konstant:0.1").find("did you mean 'constant'?") != std::string::npos);
  CHECK(refusal_of_schedule("step:0.1,epoch=3").find("did you mean 'epochs'?") != std::string::npos);
}

TEST_CASE("what a schedule observes in an evaluation stays, for no step has to commit it") {
  auto rate = muster::parse_schedule("plateau:8,factor=0.5,patience=0");
  muster::state state{rate};
  for (const double expected : {8.0, 4.0, 2.0}) {
    state.begin_step();
    rate.observe(1);
    state.finish_evaluation();
    CHECK(at_epoch(rate, 0) == expected);
  }
}
