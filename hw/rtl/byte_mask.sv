// Keeps the first `bytes` bytes of a line and makes zeros of the others; a line's and more keep all.
module byte_mask (
    input logic [15:0] bytes,
    input logic [nic_pkg::LINE_BITS-1:0] line,
    output logic [nic_pkg::LINE_BITS-1:0] kept
);
  always_comb begin
    for (int i = 0; i < nic_pkg::LINE_BYTES; i++) kept[8*i+:8] = (16'(i) < bytes) ? line[8*i+:8] : 8'd0;
  end
endmodule
