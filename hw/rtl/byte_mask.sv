// Keeps the first `bytes` bytes of a line and makes zeros of the others; 64 and more keep all.
module byte_mask (
    input logic [15:0] bytes,
    input logic [511:0] line,
    output logic [511:0] kept
);
  always_comb begin
    for (int i = 0; i < 64; i++) kept[8*i+:8] = (16'(i) < bytes) ? line[8*i+:8] : 8'd0;
  end
endmodule
