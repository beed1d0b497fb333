"""Node-days of calm on many small hosts: how often does the detector see a neighbour where there is none?"""
