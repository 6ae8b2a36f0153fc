// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/term.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/status.h"

namespace driftless {
namespace {

std::string three_digits(double value) {
  std::array<char, 32> text{};
  const double size = std::abs(value);
  const int digits = size < 9.995 ? 2 : (size < 99.95 ? 1 : 0);
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string grouped(const std::string& formula, bool parentheses) {
  return parentheses ? concat("(", formula, ")") : formula;
}

}  // namespace

std::string with_prefix(double value, std::string_view unit) {
  struct Prefix {
    double factor;
    const char* name;
  };
  constexpr Prefix kPrefixes[] = {{1e15, "P"}, {1e12, "T"},  {1e9, "G"},  {1e6, "M"},
                                  {1e3, "k"},  {1, ""},      {1e-3, "m"}, {1e-6, "u"},
                                  {1e-9, "n"}, {1e-12, "p"}, {1e-15, "f"}};
  const bool seconds = unit == "s";
  // A value that rounds up to the next prefix gets that prefix.
  const double size = std::abs(value) * 1.0005;
  const bool plain = size == 0 || (seconds ? size >= 1 : size < (unit.empty() ? 1e4 : 1e3));
  if (!plain) {
    for (const Prefix& prefix : kPrefixes) {
      if (size < prefix.factor || (seconds && prefix.factor > 1)) continue;
      return concat(three_digits(value / prefix.factor), " ", prefix.name, unit);
    }
  }
  if (unit.empty() && value == std::floor(value)) {
    return std::to_string(static_cast<long long>(value));
  }
  return concat(three_digits(value), unit.empty() ? "" : " ", unit);
}

Term::Term(std::string_view name, double value, std::string_view unit)
    : value_(value), formula_(concat(name, " (", with_prefix(value, unit), ")")) {}

Term::Term(double value) : Term(with_prefix(value, ""), value) {}

Term operator+(const Term& a, const Term& b) {
  if (a.value_ == 0) return b;
  if (b.value_ == 0) return a;
  Term sum(concat(a.formula_, " + ", b.formula_), a.value_ + b.value_);
  sum.sum_ = true;
  return sum;
}

Term operator-(const Term& a, const Term& b) {
  Term difference(concat(a.formula_, " - ", grouped(b.formula_, b.sum_)), a.value_ - b.value_);
  difference.sum_ = true;
  return difference;
}

Term operator*(const Term& a, const Term& b) {
  Term product(concat(grouped(a.formula_, a.sum_), " x ", grouped(b.formula_, b.sum_)),
               a.value_ * b.value_);
  product.quotient_ = true;
  return product;
}

Term operator/(const Term& a, const Term& b) {
  Term quotient(
      concat(grouped(a.formula_, a.sum_), " / ", grouped(b.formula_, b.sum_ || b.quotient_)),
      a.value_ / b.value_);
  quotient.quotient_ = true;
  return quotient;
}

Term larger(const Term& a, const Term& b) {
  return Term(concat("max(", a.formula_, ", ", b.formula_, ")"), std::max(a.value_, b.value_));
}

Term smaller(const Term& a, const Term& b) {
  return Term(concat("min(", a.formula_, ", ", b.formula_, ")"), std::min(a.value_, b.value_));
}

}  // namespace driftless
