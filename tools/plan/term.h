// SPDX-License-Identifier: Apache-2.0
// Term: a quantity and the formula that made it, with the numbers put in. One expression gives
// both, so that what is shown is what was computed. Values are in bytes, seconds and counts.
#pragma once

#include <string>
#include <string_view>

namespace driftless {

// "1.5 ms", "12.5 GB/s", "81.9 M": three digits and a prefix.
[[nodiscard]] std::string with_prefix(double value, std::string_view unit);

class Term {
 public:
  Term() : Term("0", 0) {}
  // Shown as "name (value unit)".
  Term(std::string_view name, double value, std::string_view unit);
  Term(double value);  // NOLINT(google-explicit-constructor): a plain number of a formula

  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] const std::string& formula() const { return formula_; }
  // The same value under a name of its own, for formulae that go on from it.
  [[nodiscard]] Term named(std::string_view name, std::string_view unit) const {
    return {name, value_, unit};
  }

  friend Term operator+(const Term& a, const Term& b);
  friend Term operator-(const Term& a, const Term& b);
  friend Term operator*(const Term& a, const Term& b);
  friend Term operator/(const Term& a, const Term& b);
  friend Term larger(const Term& a, const Term& b);
  friend Term smaller(const Term& a, const Term& b);

 private:
  Term(std::string formula, double value) : value_(value), formula_(std::move(formula)) {}

  double value_ = 0;
  std::string formula_;
  bool sum_ = false;       // a sum or a difference: in parentheses within a product
  bool quotient_ = false;  // a product or a quotient: in parentheses below a fraction
};

}  // namespace driftless
