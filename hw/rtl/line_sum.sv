// The sum of a line's little-endian words of 16 bits with end-around carry (RFC 1071), added to the sum of the lines before.
module line_sum (
    input logic [15:0] start,
    input logic [nic_pkg::LINE_BITS-1:0] line,
    output logic [15:0] sum
);
  localparam int WORDS = nic_pkg::LINE_BYTES / 2;
  // Holds as many words as a line has, and the one before.
  localparam int WIDE_BITS = 16 + nic_pkg::LINE_BYTES_LOG2;
  logic [WIDE_BITS-1:0] wide;
  logic [16:0] folded;

  always_comb begin
    wide = WIDE_BITS'(start);
    for (int i = 0; i < WORDS; i++) wide = wide + WIDE_BITS'(line[16*i+:16]);
    folded = 17'(wide[15:0]) + 17'(wide[WIDE_BITS-1:16]);
    sum = folded[15:0] + 16'(folded[16]);
  end
endmodule
