// Counts events, one bit each, and puts the durations of calls into a histogram by their logarithm. Counters wrap at 2^32.
module monitor #(
    parameter int COUNTERS = 32,
    parameter int BUCKETS = 24
) (
    input logic clk,
    input logic rst,
    input logic [COUNTERS-1:0] events,
    input logic duration_valid,
    input logic [31:0] duration,
    input logic [4:0] counter_index,
    output logic [31:0] counter,
    input logic [4:0] bucket_index,
    output logic [31:0] bucket
);
  logic [32*COUNTERS-1:0] counters_q;
  logic [32*BUCKETS-1:0] buckets_q;
  logic [4:0] logarithm;

  assign counter = counters_q[32*counter_index+:32];
  assign bucket = (bucket_index < 5'(BUCKETS)) ? buckets_q[32*bucket_index+:32] : 32'd0;

  always_comb begin
    logarithm = '0;
    for (int i = 0; i < 32; i++) begin
      if (duration[i]) logarithm = (i < BUCKETS) ? 5'(i) : 5'(BUCKETS - 1);
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      counters_q <= '0;
      buckets_q <= '0;
    end else begin
      if (events != '0) begin
        for (int i = 0; i < COUNTERS; i++) begin
          if (events[i]) counters_q[32*i+:32] <= counters_q[32*i+:32] + 32'd1;
        end
      end
      if (duration_valid) begin
        for (int i = 0; i < BUCKETS; i++) begin
          if (logarithm == 5'(i)) buckets_q[32*i+:32] <= buckets_q[32*i+:32] + 32'd1;
        end
      end
    end
  end
endmodule
