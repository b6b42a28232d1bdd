// The sum of a line's 32 little-endian words with end-around carry (RFC 1071), added to the sum of the lines before.
module line_sum (
    input logic [15:0] start,
    input logic [511:0] line,
    output logic [15:0] sum
);
  logic [21:0] wide;
  logic [16:0] folded;

  always_comb begin
    wide = 22'(start);
    for (int i = 0; i < 32; i++) wide = wide + 22'(line[16*i+:16]);
    folded = 17'(wide[15:0]) + 17'(wide[21:16]);
    sum = folded[15:0] + 16'(folded[16]);
  end
endmodule
